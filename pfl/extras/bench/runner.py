"""The runs of a benchmark: trials, which see no test samples, and final runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch

from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import FailedError, explained
from pfl.core.data import DataSource
from pfl.engines import cores
from pfl.extras.bench.blinded import Blinded
from pfl.extras.bench.contender import Contender
from pfl.extras.bench.cost import ROUNDS, CountingEngine
from pfl.extras.bench.pieces import Piece
from pfl.federation.run import Run
from pfl.federation.summary import MEANS, summarise
from pfl.verification import portable
from pfl.verification.rounding import DRAWS, move
from pfl.verification.verdict import largest


@dataclass(frozen=True)
class Budget:
    """The budget of each trial of a task.

    Attributes:
        samples: Processed samples.
        operations: Floating-point operations of one processed sample.
    """

    samples: int
    operations: float


class Runner:
    """Runner of a task's trials and final runs.

    Args:
        reference: The method whose run at the task's defaults sets the budget.
    """

    def __init__(self, reference: Contender) -> None:
        self.reference = reference
        self._data: tuple[str, DataSource] | None = None

    def budget(self, seed: int) -> Budget:
        """Return the budget of a trial: samples processed by the reference in all its rounds."""
        experiment = self.reference.experiment(seed, {}, None)
        run, engine = self._counted(self.reference, seed, {})
        samples = run.history[-1]["train/samples"]
        return Budget(
            samples=round(experiment.values.loop.rounds * samples),
            operations=engine.cost.later / samples,
        )

    def trial(self, piece: Piece, budget: Budget) -> dict[str, Any]:
        """Run a trial and return its outcome as plain values.

        Raises:
            FailedError: The budget is too small for one round, or there is no score.
        """
        contender, seed, settings = piece.contender, piece.seed, piece.settings
        _, engine = self._counted(contender, seed, settings)
        cost = engine.cost.in_units(budget.operations)
        rounds = cost.rounds(budget.samples)
        if rounds == 0:
            raise FailedError(
                f"one round costs {cost.of(1):,.0f} processed samples, but the budget is "
                f"{budget.samples:,}"
            )
        run = self._fit(contender.experiment(seed, settings, rounds), blind=True)
        name, more = self.score(run)
        curve = [
            [int(row["round"]), row[f"val/personal/{name}"]]
            for row in run.history
            if math.isfinite(row.get(f"val/personal/{name}", math.nan))
        ]
        if not curve:
            raise FailedError(f"there is no validation score {name!r}")
        best = (max if more else min)(curve, key=lambda point: point[1])
        return {
            "rounds": rounds,
            "samples": round(cost.of(rounds)),
            "score": name,
            "more": more,
            "validation": best[1],
            "curve": curve,
        }

    def final(self, piece: Piece) -> dict[str, Any]:
        """Make a final run with tests, and return its scores as plain values."""
        experiment = piece.contender.experiment(piece.seed, piece.settings, piece.rounds)
        run = self._fit(experiment, blind=False)
        return {
            "partition": run.data.description()["hash"],
            "fingerprint": run.fingerprint,
            "environment": environment(),
            "bytes_down": sum(int(row["comm/bytes_down"]) for row in run.history),
            "bytes_up": sum(int(row["comm/bytes_up"]) for row in run.history),
            **scores(run, *self.score(run)),
        }

    def radius(self, piece: Piece, plain: Mapping[str, Any]) -> float:
        """Return how far rounding alone moves the scores of a final run.

        This is the largest difference between its scores, ``plain``, and those of repetitions whose
        initial weights are moved by one unit in the last place, over several draws.

        Raises:
            FailedError: A moved run fails.
        """
        radius = 0.0
        for draw in range(DRAWS):
            experiment = piece.contender.experiment(piece.seed, piece.settings, piece.rounds)
            self._share_data(experiment)
            move(experiment.module.net, draw)
            run = self._fit(experiment, blind=False)
            moved = by_point(scores(run, *self.score(run)))
            radius = max(radius, largest(by_point(plain), moved)[1])
        return radius

    def score(self, run: Run) -> tuple[str, bool]:
        """Return the score by which settings and rounds are chosen, and whether higher is better.

        Raises:
            FailedError: The task names a score that runs do not have.
        """
        wanted = self.reference.task.score or next(iter(run.scores))
        if wanted not in run.scores:
            raise FailedError(f"there is no score {wanted!r}: choose from {', '.join(run.scores)}")
        return wanted, run.scores[wanted]

    def _counted(
        self, contender: Contender, seed: int, settings: Mapping[str, Any]
    ) -> tuple[Run, CountingEngine]:
        """Run the first rounds, one client after another, and count their cost."""
        engine = CountingEngine()
        experiment = contender.experiment(seed, settings, ROUNDS)
        experiment.values["loop.evaluate_every"] = ROUNDS
        return self._fit(experiment, blind=True, engine=engine), engine

    def _fit(
        self, experiment: Experiment, blind: bool, engine: CountingEngine | None = None
    ) -> Run:
        self._share_data(experiment)
        loop, module = experiment.loop, experiment.module
        if engine is not None:
            loop = replace(loop, engine=engine)
        data: Any = Blinded(experiment.data) if blind else experiment.data
        with explained(experiment.settings, *REFUSALS, ArithmeticError), warnings.catch_warnings():
            # Such as warnings about too large a learning rate; the outcome shows it.
            warnings.simplefilter("ignore")
            return loop.fit(module, data)

    def _share_data(self, experiment: Experiment) -> None:
        """Reuse the data of the last experiment if they are the same."""
        key = str(experiment.values.data)
        if self._data is None or self._data[0] != key:
            experiment.look()
            self._data = key, experiment.data
        experiment.__dict__["data"] = self._data[1]


def scores(run: Run, name: str, more: bool) -> dict[str, dict[str, float]]:
    """Return a run's test scores after its last round and after the best by validation.

    ``name`` is the validation score that chooses the best round.
    """
    summary = summarise(run.history, {name: more})
    finite = {key: value for key, value in summary.items() if math.isfinite(value)}
    wanted = {f"test/personal/{one}": one for one in run.scores}
    wanted |= {f"test/personal/{name}{ending}": name + ending for ending in MEANS}
    wanted[f"test/unseen_joined/{name}"] = f"unseen_joined/{name}"
    return {
        at: {
            short: finite[f"{long}/{at}"]
            for long, short in wanted.items()
            if f"{long}/{at}" in finite
        }
        for at in ("last", "best_by_val")
    }


def by_point(outcome: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of a final run by round and name, such as ``last acc``."""
    points = ("last", "best_by_val")
    return {f"{at} {name}": value for at in points for name, value in outcome.get(at, {}).items()}


def environment() -> dict[str, str | bool]:
    """Return the parts of the environment that affect the last bits of results."""
    return {
        "processor": cores.processor(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "portable": portable.active(),
    }
