"""Estimates of what a table's runs will cost, from a few steps on made-up data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jsonargparse import Namespace
from torch import Tensor

from pfl.callbacks.progress import readable_bytes
from pfl.cli.config import REFUSALS, Experiment
from pfl.cli.explain import explained
from pfl.core.seeds import generator
from pfl.core.state import nbytes
from pfl.federation import checkpoint
from pfl.federation.run import Run
from pfl.results.compare import NONE
from pfl.results.sheets import Sheet
from pfl.tables import kept
from pfl.tables.plan import Plan, PlannedRun
from pfl.tables.render import shortened
from pfl.tables.runner import reason
from pfl.tables.sizes import Sizes, Surveyor
from pfl.tables.spec import TableFile

# The made-up federations: their clients, and the batches that each trains on and is tested on.
# Two sizes tell what a client costs whatever its data from what each batch costs.
_CLIENTS = 2
_SMALL, _LARGE = 1, 3
# How many times as long as it worked a measurement may take.
BUSY = 1.2
# Values, gradients, the optimiser's state, and the state that clients start from.
_COPIES = 4


class Line(NamedTuple):
    """Seconds of a client by the batches of its data, on one core.

    Attributes:
        start: Whatever they are.
        batch: For each.
    """

    start: float
    batch: float

    @classmethod
    def through(cls, small: float, large: float) -> Line:
        """Return the line through the costs of a small and a large client."""
        batch = max(0.0, large - small) / (_LARGE - _SMALL)
        return cls(max(0.0, small - _SMALL * batch), batch)

    def seconds(self, clients: int, batches: float) -> float:
        """Return the cost of some clients with so many batches in all."""
        return self.start * clients + self.batch * batches


@dataclass(frozen=True)
class Rates:
    """Cost of one client in one round.

    Attributes:
        train: Of training and aggregation, by the batches that it trains on.
        test: Of its tests, by the batches that they walk over.
        adapts: A test trains on a copy first, and walks over the training data.
        down: Bytes that it receives.
        up: Bytes that it sends.
        keeps: Bytes that it keeps, and that the server keeps for it.
        model: Bytes of its state.
    """

    train: Line
    test: Line
    adapts: bool
    down: float
    up: float
    keeps: float
    model: float


@dataclass(frozen=True)
class Cost:
    """Cost of the rest of a run.

    Attributes:
        seconds: One client after another, on one core of this machine.
        memory: Bytes of images, models and kept states.
        moved: Bytes both ways.
    """

    seconds: float
    memory: float
    moved: float


def sheet(table: TableFile, plan: Plan, tell: Callable[[str], None]) -> Sheet:
    """Make a row for each run: what is done, and what the rest costs.

    Args:
        table: The table.
        plan: Its runs.
        tell: Called with each run's row, as a line, once it is known.
    """
    estimator = _Estimator()
    rows: list[list[str]] = []
    footnotes: dict[str, int] = {}
    costs: list[Cost] = []
    done = 0
    for run in plan.runs.values():
        cells = [NONE] * 3
        if kept.finished(run) is not None:
            state = "done"
            done += 1
        else:
            state, before = _state(run)
            try:
                with explained(run.experiment.given, *REFUSALS):
                    costs.append(estimator.cost(run, before))
                cells = _cells(costs[-1])
            except Exception as error:  # whatever a method raises, the others are estimated
                number = footnotes.setdefault(reason(error), len(footnotes) + 1)
                state += f" [{number}]"
        rows.append([run.label, state, *cells])
        tell(f"{run.label}: {', '.join([state, *cells])}")
    total = Cost(
        seconds=sum(cost.seconds for cost in costs),
        memory=max((cost.memory for cost in costs), default=0),
        moved=sum(cost.moved for cost in costs),
    )
    rows.append(["together", f"{done} of {len(plan.runs)} done", *_cells(total)])
    return Sheet(
        title=f"{table.caption}{shortened(plan)}: what is left to run",
        columns=["run", "state", "time", "memory", "moved"],
        rows=rows,
        notes=[
            "Estimated from a few steps on made-up data, one client after another, on one core of "
            "this machine; without reading the data. Engines that use several cores divide the "
            "time by almost as many. Memory: images, models and what clients keep.",
            *estimator.watch.complaints(),
            *(f"[{number}] {what}" for what, number in footnotes.items()),
        ],
    )


def _state(run: PlannedRun) -> tuple[str, int]:
    """Describe an unfinished run, and return the rounds that are done."""
    folder = kept.resumable(run)
    if folder is None:
        return "missing", 0
    done = kept.rounds_done(folder)
    return f"round {done} of {run.rounds}", done


class _Estimator:
    """Measures each method on each kind of data once."""

    def __init__(self) -> None:
        self.watch = _Watch()
        self._surveyor = Surveyor()
        self._rates: dict[str, Rates] = {}

    def cost(self, run: PlannedRun, before: int) -> Cost:
        """Return the rounds after ``before``, with their cohorts.

        Raises:
            ValueError: The configuration does not fit the data.
            OSError: The data are not there, and how many there are is not known.
        """
        found = self._surveyor.sizes(run)
        rates, loop = self._measured(run, found), run.experiment.loop
        size = run.experiment.values.data.init_args.batch_size
        batches = [-(-count // size) for count in found.train]
        eligible = [client for client, count in enumerate(found.train) if count > 0]
        seconds = moved = 0.0
        walked = sum(batches) if rates.adapts else (found.tested + found.pooled) / size
        for number in range(before + 1, run.rounds + 1):
            cohort = loop.sampler(eligible, generator(loop.seed, "cohort", number), number)
            trained = sum(batches[client] for client in cohort.trains)
            seconds += rates.train.seconds(len(cohort.trains), trained)
            moved += rates.down * len(cohort.trains) + rates.up * len(cohort.uploads)
            if number % loop.evaluate_every == 0 or number == run.rounds:
                seconds += rates.test.seconds(len(batches), walked)
        memory = found.bytes + rates.keeps * len(eligible) + _COPIES * rates.model
        return Cost(seconds, memory, moved)

    def _measured(self, run: PlannedRun, found: Sizes) -> Rates:
        model = {key: value for key, value in run.identity.items() if key.startswith("model")}
        size = run.experiment.values.data.init_args.batch_size
        key = json.dumps([model, found.shape, found.classes, size], default=str)
        if key not in self._rates:
            with self.watch.on_one_core():
                self._rates[key] = _measure(run.experiment, found)
        return self._rates[key]


class _Watch:
    """Tells whether a machine was quiet while something was measured on it."""

    def __init__(self) -> None:
        self._passed = self._worked = self._load = 0.0

    @contextmanager
    def on_one_core(self) -> Iterator[None]:
        """Measure with one op thread: several wait for each other where other programs run."""
        op_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        start = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._passed += time.perf_counter() - start[0]
            self._worked += time.process_time() - start[1]
            self._load = max(self._load, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0)
            torch.set_num_threads(op_threads)

    def complaints(self) -> list[str]:
        """Return a sentence on a machine that was too busy, or nothing."""
        cores = os.cpu_count() or 1
        if self._passed < BUSY * self._worked and self._load <= cores:
            return []
        return [
            f"THE MACHINE WAS BUSY: the measurement had {self._worked / self._passed:.0%} of a "
            f"core, and {self._load:.1f} programs wanted {cores} cores. Times are too long; ask "
            "again when it is quiet."
        ]


def _measure(experiment: Experiment, found: Sizes) -> Rates:
    """Train two made-up federations, one with small and one with large clients."""
    small, large = _trial(experiment, found, _SMALL, 3), _trial(experiment, found, _LARGE, 2)
    row = large.run.history[-1]
    return Rates(
        train=Line.through(small.train, large.train),
        test=Line.through(small.test, large.test),
        adapts=large.adapts,
        down=row["comm/bytes_down"] / _CLIENTS,
        up=row["comm/bytes_up"] / _CLIENTS,
        keeps=_keeps(large.run),
        model=nbytes(large.run.template),
    )


class _Trial(NamedTuple):
    """A made-up federation's run, and the seconds of each of its clients in a round."""

    run: Run
    train: float
    test: float
    adapts: bool


def _trial(experiment: Experiment, found: Sizes, batches: int, rounds: int) -> _Trial:
    """Run some rounds; the first warms up, and the fastest of the others counts."""
    values = _made_up(experiment, found, batches)
    values.loop.rounds = rounds
    trial = Experiment(experiment.parser, values, experiment.given)
    run = trial.loop.fit(trial.module, trial.data)
    warm = run.history[1:]
    train = min(row["time/train"] + row["time/aggregate"] for row in warm) / _CLIENTS
    test = min(row["time/evaluate"] for row in warm) / _CLIENTS
    return _Trial(run, train, test, bool(list(trial.module.adapt())))


def _keeps(run: Run) -> float:
    """Bytes that one more client costs: its own state, and the server's part for it."""
    own = sum(nbytes(run.kept[client]) for client in run.kept) / _CLIENTS
    packed = _tensors(checkpoint.pack(run.server))
    return own + max(0, packed - nbytes(run.server.shared)) / _CLIENTS


def _tensors(value: Any) -> int:  # noqa: ANN401
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_tensors, value.values()))
    return sum(map(_tensors, value)) if isinstance(value, list | tuple) else 0


def _made_up(experiment: Experiment, found: Sizes, batches: int) -> Namespace:
    """Return the same method on clients of so many batches, with data of the same shape."""
    values = experiment.values.clone()
    size = values.data.init_args.batch_size
    values.data = Namespace(
        class_path="datamodules.Synthetic",
        init_args=Namespace(
            num_clients=_CLIENTS,
            partition=Namespace(class_path="datamodules.IID", init_args=Namespace()),
            samples=_CLIENTS * 2 * batches * size,
            classes=found.classes,
            channels=found.shape[0],
            size=round((found.shape[1] * found.shape[2]) ** 0.5),
            batch_size=size,
            test_fraction=0.5,
        ),
    )
    for key, value in {
        "evaluate_every": 1,
        "sampler": Namespace(
            class_path="pfl.federation.sampling.UniformSampler", init_args=Namespace()
        ),
        "engine": "sequential",
        "callbacks": None,
        "loggers": None,
        "default_root_dir": None,
        "progress": False,
        "on_nonfinite": "skip",
    }.items():
        values.loop[key] = value
    return values


def _cells(cost: Cost) -> list[str]:
    return [_duration(cost.seconds), readable_bytes(cost.memory), readable_bytes(cost.moved)]


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
