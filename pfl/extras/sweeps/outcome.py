"""The results of a sweep: its points, best first, as a table, a file and a command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from pfl.core.plain import spelled
from pfl.core.sheet import Sheet
from pfl.extras.sweeps.file import Sweep
from pfl.extras.sweeps.program import fit_words
from pfl.extras.sweeps.search import failed
from pfl.extras.sweeps.space import Point
from pfl.results import names
from pfl.results.settings import short_names

_WORDS = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "stopped",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


@dataclass(frozen=True)
class PointResult:
    """One point and its outcome.

    Attributes:
        trial: The point's last trial.
        number: Number of the point, from 1.
        state: One word, such as ``done``; ``stopped`` means stopped early.
        values: Values of the varied parameters.
        value: The metric at the end, or where the run was stopped early.
        seconds: Seconds of the run's rounds, those before an interruption included.
        folder: Folder of the run.
        reason: Why the point was not finished.
    """

    trial: FrozenTrial
    number: int
    state: str
    values: Point
    value: float | None
    seconds: float | None
    folder: str | None
    reason: str

    @property
    def done(self) -> bool:
        """``True`` if the value is final."""
        return self.state == _WORDS[TrialState.COMPLETE]


def outcomes(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[PointResult]:
    """Return all points: first the finished ones, best first, then those stopped early."""
    results = [_result(sweep, trial) for trial in trials if trial.params]
    sign, order = (-1 if sweep.metric.goal == "maximize" else 1), list(_WORDS.values())

    def rank(outcome: PointResult) -> tuple[int, float, int]:
        value = sign * outcome.value if outcome.value is not None else 0.0
        return order.index(outcome.state), value, outcome.number

    return sorted(results, key=rank)


def _result(sweep: Sweep, trial: FrozenTrial) -> PointResult:
    # Optuna gives a pruned trial its last finite value, a failed point of "bayes" among them.
    value = None if failed(trial) else trial.value
    stopped = trial.state == TrialState.PRUNED and not failed(trial)
    if stopped and trial.last_step is not None:
        value = trial.intermediate_values[trial.last_step]
    space, state = sweep.space, trial.state
    if failed(trial) or state == TrialState.FAIL:  # the latter alone if it is to be resumed
        state = TrialState.FAIL if failed(trial) else TrialState.WAITING
    return PointResult(
        trial=trial,
        number=trial.user_attrs["point"] + 1,
        state=_WORDS[state],
        values={name: space.varied[name].decode(trial.params[name]) for name in space.varied},
        value=value,
        seconds=trial.user_attrs.get("seconds") if trial.state.is_finished() else None,
        folder=trial.user_attrs.get("folder"),
        reason=trial.user_attrs.get("reason", ""),
    )


def value_text(value: Any) -> str:  # noqa: ANN401
    """Return a parameter's value in readable form."""
    return f"{value:.4g}" if isinstance(value, float) else spelled(value)


def sheet(sweep: Sweep, results: Sequence[PointResult]) -> Sheet:
    """Return a table of all points, best first."""
    rows = [
        [
            str(outcome.number),
            *map(value_text, outcome.values.values()),
            "-" if outcome.value is None else f"{outcome.value:.4f}",
            "-" if outcome.seconds is None else f"{outcome.seconds:.0f}",
            outcome.state,
        ]
        for outcome in results
    ]
    records = [
        {
            **{"point": outcome.number, "state": outcome.state, **outcome.values},
            **{sweep.metric.name: outcome.value, "seconds": outcome.seconds},
            **{"folder": outcome.folder, "reason": outcome.reason},
        }
        for outcome in results
    ]
    return Sheet(
        title=f"{sweep.path.stem}: {names.described(sweep.metric.name)}, best first",
        columns=["#", *short_names(list(sweep.space.varied)).values(), "value", "seconds", ""],
        rows=rows,
        records=records,
    )


def reasons(results: Sequence[PointResult]) -> dict[str, list[int]]:
    """Group failed points by cause."""
    grouped: dict[str, list[int]] = {}
    for outcome in results:
        if outcome.state == _WORDS[TrialState.FAIL]:
            grouped.setdefault(outcome.reason, []).append(outcome.number)
    return grouped


def command_line(sweep: Sweep, outcome: PointResult, flags: Sequence[str]) -> str:
    """Return the command line that runs a point again."""
    point = {**outcome.values, **sweep.space.constants}
    return f"pfl fit {shlex.join([*fit_words(sweep, point, None), *flags])}"
