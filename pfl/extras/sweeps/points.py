"""The points of a sweep as a campaign: Optuna chooses and stores them, locks claim them.

A point is a trial of an Optuna study in a SQLite file. A trial that is running, but whose lock is
free, was interrupted or killed, and is resumed. A point that failed has an infinitely bad value, as
in W&B, so that samplers avoid its neighbourhood.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import BaseFileLock
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from pfl.campaign.campaign import Planned, reason
from pfl.cli import runs
from pfl.cli.explain import UsageError
from pfl.cli.reading import read
from pfl.core.plain import spelled
from pfl.core.seeds import derive
from pfl.core.types import RoundResult
from pfl.disk.nearest import hint, nearest
from pfl.extras.sweeps.file import Sweep
from pfl.extras.sweeps.program import fit_words
from pfl.federation.folders import FILE
from pfl.federation.run import Callback, Run


class UnknownMetricError(UsageError):
    """Runs of the sweep do not have the metric that it optimises."""


@dataclass
class Points:
    """The points of a sweep.

    Attributes:
        sweep: The sweep.
        study: The points that were begun.
        mutex: Held while a point is chosen, as a choice may depend on what others have found.
        folder: Folder of claims and of points' files.
        flags: Flags of ``pfl fit`` for every point.
        seed: Seed of all draws. A point's draws depend on its number and, for ``bayes``, on the
            outcomes so far.
        size: Number of points, including those of earlier calls and other processes.
        refusal: Why no point can be finished; ``None`` if there is no reason.
    """

    sweep: Sweep
    study: optuna.Study
    mutex: BaseFileLock
    folder: Path
    flags: Sequence[str]
    seed: int
    size: int
    refusal: UnknownMetricError | None = None

    def trials(self) -> dict[int, FrozenTrial]:
        """Return the last trial of each point by its number, from 0."""
        trials = self.study.get_trials(deepcopy=False)
        return {one.user_attrs["point"]: one for one in trials if "point" in one.user_attrs}

    def missing(self) -> list[Planned]:
        """Return the points that have not ended; none is begun once the target is reached."""
        known, metric = self.trials(), self.sweep.metric
        done = {number: trial for number, trial in known.items() if trial.state.is_finished()}
        values = [one.value for one in done.values() if one.state == TrialState.COMPLETE]
        more = 0 if any(map(metric.reached, values)) else self.size
        folder = self.folder / "points"
        return [
            Planned(str(n + 1), f"point {n + 1}", folder / str(n + 1), partial(self._run, n))
            for n in sorted({*known, *range(more)} - done.keys())
            if self.refusal is None
        ]

    def retry(self) -> None:
        """Let all failed points be missing."""
        for trial in self.trials().values():
            if trial.user_attrs.get("state") == "failed":
                kept = {key: trial.user_attrs.get(key) for key in ("point", "folder")}
                again: dict[str, Any] = {
                    "params": trial.params,
                    "distributions": trial.distributions,
                }
                self.study.add_trial(
                    create_trial(state=TrialState.RUNNING, user_attrs=kept, **again)
                )

    def _trial(self, number: int) -> Trial:
        """Return the trial of a point that this process has claimed."""
        with self.mutex:
            if (known := self.trials().get(number)) is not None:
                return Trial(self.study, known._trial_id)
            drawn, method = self.sweep.drawn, self.sweep.method
            if method == "grid":  # the last parameter varies fastest
                choices = [one.choices for one in drawn.values()]
                places = np.unravel_index(number, [*map(len, choices)])
                picked = [among[place] for among, place in zip(choices, places, strict=True)]
                self.study.enqueue_trial(dict(zip(drawn, picked, strict=True)))
            samplers = optuna.samplers
            sampler = samplers.TPESampler if method == "bayes" else samplers.RandomSampler
            # Optuna's seeds have 32 bits.
            self.study.sampler = sampler(seed=derive(self.seed, "point", number) % 2**32)
            trial = self.study.ask(drawn)
            trial.set_user_attr("point", number)
            return trial

    def _run(self, number: int, callbacks: Sequence[Callback] = ()) -> None:
        """Run a point, or resume it, and store its outcome."""
        sweep, trial, number = self.sweep, self._trial(number), number + 1
        point, name = sweep.point(trial.params), sweep.metric.name
        said = [f"{sweep.short[key]}={value_text(value)}" for key, value in point.items()]
        print(f"point {number} of {self.size}: {', '.join(said)}", flush=True)
        file = self.folder / "points" / f"{number}.json"
        words = [*fit_words(sweep, {**point, **sweep.constants}, file), *self.flags]
        folder = trial.user_attrs.get("folder")
        words += ["--ckpt_path", folder] if folder and Path(folder, FILE).is_file() else []
        value: float | None = None
        try:
            value = logged(runs.fit(read("fit", words), [_Reporter(trial, sweep)]))[name]
            if not math.isfinite(value):
                raise ArithmeticError(f"{name} is {value}")
            state, why = "done", f"{name} {value:.4f}"
        except UnknownMetricError as error:
            self.refusal = error
            return
        except optuna.TrialPruned as pruned:
            state, why = "stopped", str(pruned)
        except Exception as error:  # the other points continue, whatever the error
            if not isinstance(error, UsageError | ArithmeticError):
                traceback.print_exc()
            value, state, why = sweep.metric.sign * math.inf, "failed", reason(error)
        for key, told in (("state", state), ("reason", why)):
            trial.set_user_attr(key, told)
        self.study.tell(trial, value, TrialState.PRUNED if value is None else TrialState.COMPLETE)
        print(f"point {number} {state}: {why}")


def value_text(value: object) -> str:
    """Return a parameter's value in readable form."""
    return f"{value:.4g}" if isinstance(value, float) else spelled(value)


def logged(run: Run) -> dict[str, float]:
    """Build the W&B summary: the last value of every logged key, plus our aggregates."""
    last = {name: value for row in run.history for name, value in row.items()}
    return last | run.summary


class _Reporter(Callback):
    """Reports the metric to a trial after each round, and ends the run if it falls behind.

    Raises:
        UnknownMetricError: At the first tested round, if runs do not have the metric.
        TrialPruned: The run falls behind; it is treated as interrupted.
    """

    def __init__(self, trial: Trial, sweep: Sweep) -> None:
        self._trial = trial
        self._sweep = sweep

    def on_fit_start(self, run: Run) -> None:
        """Store the run's folder."""
        self._trial.set_user_attr("folder", None if run.folder is None else str(run.folder))

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Report the round; end the run if it falls behind."""
        name, trial, early = self._sweep.metric.name, self._trial, self._sweep.early_terminate
        if result.evaluated and name not in (known := logged(run)):
            tested = [key for key in known if re.fullmatch(r"(test|val)/[^/]+/[^/]+", key)]
            near = nearest(name, known, 4) or hint(name, tested)
            raise UnknownMetricError(f"there is no metric {name!r}{near}")
        trial.set_user_attr("seconds", sum(row["time/round"] for row in run.history))
        if name not in result.metrics:
            return
        step = sum(name in row for row in run.history)
        if step not in trial.study.trials[trial.number].intermediate_values:  # before a kill
            trial.report(result.metrics[name], step)
        # should_prune also records what other trials are compared with, so it is always called.
        if trial.should_prune() and early is not None and run.round < run.rounds:
            where = f"after round {run.round} of {run.rounds}: {result.metrics[name]:.4g}"
            raise optuna.TrialPruned(f"{where} is not among the best 1/{early.eta} so far")
