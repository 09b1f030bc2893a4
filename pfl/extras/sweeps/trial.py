"""The run of one point, monitored from round to round."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from optuna.trial import Trial

from pfl.cli import runs
from pfl.cli.explain import UsageError
from pfl.core.types import RoundResult
from pfl.disk.nearest import hint, nearest
from pfl.extras.sweeps.file import Sweep
from pfl.federation.resume import FILE
from pfl.federation.run import Callback, Run


class UnknownMetricError(UsageError):
    """Runs of the sweep do not have the metric that it optimises."""


class Reporter(Callback):
    """Reports the metric to a trial after each round, and ends the run if it falls behind.

    Args:
        trial: The trial.
        sweep: The sweep, which sets the metric and early stopping.

    Raises:
        UnknownMetricError: At the first tested round, if runs do not have the metric.
        TrialPruned: The run falls behind; it is treated as interrupted.
    """

    def __init__(self, trial: Trial, sweep: Sweep) -> None:
        self._trial = trial
        self._sweep = sweep
        self._count = 0
        self.seconds = 0.0

    def on_fit_start(self, run: Run) -> None:
        """Store the run's folder, and report the rounds before an interruption."""
        self._trial.set_user_attr("folder", None if run.folder is None else str(run.folder))
        for row in run.history:
            self._report(row)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Report the round; end the run if it falls behind."""
        name = self._sweep.metric.name
        if result.evaluated and name not in (known := logged(run)):
            tested = [key for key in known if re.fullmatch(r"(test|val)/[^/]+/[^/]+", key)]
            near = nearest(name, known, 4) or hint(name, tested)
            raise UnknownMetricError(f"there is no metric {name!r}{near}")
        # should_prune also records what other trials are compared with, so it is always called.
        behind = self._report(result.metrics) and self._trial.should_prune()
        early = self._sweep.early_terminate
        if behind and early is not None and run.round < run.rounds:
            value = result.metrics[name]
            raise optuna.TrialPruned(
                f"stopped after round {run.round} of {run.rounds}: {value:.4g} is not among the "
                f"best 1/{early.eta} so far"
            )

    def _report(self, row: Mapping[str, float]) -> bool:
        self.seconds += row["time/round"]
        value = row.get(self._sweep.metric.name)
        if value is None:
            return False
        self._count += 1
        self._trial.report(value, self._count)
        return True


def logged(run: Run) -> dict[str, float]:
    """Build the W&B summary: the last value of every logged key, plus our aggregates."""
    last = {name: value for row in run.history for name, value in row.items()}
    return last | run.summary


def value_of(words: Sequence[str], trial: Trial, sweep: Sweep) -> float:
    """Run ``pfl fit`` for a trial and return the last value of its metric.

    An interrupted run is resumed.

    Raises:
        UsageError: The configuration is wrong.
        TrialPruned: The run was stopped early.
        ArithmeticError: The metric is not a finite number.
    """
    folder = trial.user_attrs.get("folder")
    if folder is not None and Path(folder, FILE).is_file():
        words = [*words, "--ckpt_path", folder]
    reporter = Reporter(trial, sweep)
    try:
        value = logged(runs.fit(words, [reporter]))[sweep.metric.name]
    finally:
        trial.set_user_attr("seconds", reporter.seconds)
    if not math.isfinite(value):
        raise ArithmeticError(f"{sweep.metric.name} is {value}")
    return value
