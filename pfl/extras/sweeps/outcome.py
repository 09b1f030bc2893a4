"""The results of a sweep: its points, best first, as a table, a file and a command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from optuna.trial import FrozenTrial, TrialState

from pfl.core.plain import spelled
from pfl.core.sheet import Sheet
from pfl.extras.sweeps.file import Sweep
from pfl.extras.sweeps.program import fit_words
from pfl.extras.sweeps.search import failed
from pfl.results import names
from pfl.results.settings import short_names

# Words for the states of trials, and the order in which a table has them. A trial that ended
# without an outcome is to be resumed.
_STATES = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "stopped",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
    TrialState.FAIL: "waiting",
}
_ORDER = ("done", "stopped", "failed", "running", "waiting")


def outcomes(sweep: Sweep, trials: Sequence[FrozenTrial]) -> pd.DataFrame:
    """Return a row for each point: first the finished ones, best first, then those stopped early.

    Returns:
        The columns ``point`` (from 1), ``state`` (``stopped`` means early), the varied parameters,
        the metric (at the end, or where the run was stopped), ``seconds`` of its rounds, ``folder``
        and ``reason`` (why it was not finished).
    """
    metric, varied = sweep.metric, [*sweep.space.varied]
    columns = ["point", "state", *varied, metric.name, "seconds", "folder", "reason"]
    rows = [_row(sweep, trial) for trial in trials if trial.params]
    table = pd.DataFrame(rows, columns=columns, dtype=object)
    values = pd.to_numeric(table[metric.name]).fillna(0)
    values = -values if metric.goal == "maximize" else values
    order = np.lexsort((table["point"], values, table["state"].map(_ORDER.index)))
    return table.iloc[order].reset_index(drop=True)


def _row(sweep: Sweep, trial: FrozenTrial) -> dict[str, Any]:
    space, attributes = sweep.space, trial.user_attrs
    return {
        "point": attributes["point"] + 1,
        "state": "failed" if failed(trial) else _STATES[trial.state],
        **{name: space.decode_one(name, trial.params[name]) for name in space.varied},
        sweep.metric.name: last_value(trial),
        "seconds": attributes.get("seconds") if trial.state.is_finished() else None,
        **{"folder": attributes.get("folder"), "reason": attributes.get("reason", "")},
    }


def last_value(trial: FrozenTrial) -> float | None:
    """Return the metric of a trial at its end, or where it was stopped; ``None`` if it failed."""
    # Optuna gives a pruned trial its last finite value, a failed point of "bayes" among them.
    if failed(trial):
        return None
    if trial.state == TrialState.PRUNED and trial.last_step is not None:
        return trial.intermediate_values[trial.last_step]
    return trial.value


def value_text(value: Any) -> str:  # noqa: ANN401
    """Return a parameter's value in readable form."""
    return f"{value:.4g}" if isinstance(value, float) else spelled(value)


def sheet(sweep: Sweep, table: pd.DataFrame) -> Sheet:
    """Return the table of all points for people."""
    varied, name = [*sweep.space.varied], sweep.metric.name
    short = short_names(varied)
    alike = [short[key] for key in varied if table[key].map(value_text).nunique() == 1]
    records = table.to_dict("records")
    rows = [
        [
            *(str(row["point"]), *(value_text(row[key]) for key in varied)),
            *(_number(row[name], 4), _number(row["seconds"], 0), row["state"]),
        ]
        for row in records
    ]
    return Sheet(
        title=f"{sweep.path.stem}: {names.described(name)}, best first",
        columns=["#", *short.values(), "value", "seconds", ""],
        rows=rows,
        records=[{str(key): value for key, value in row.items()} for row in records],
        optional=[*dict.fromkeys(("seconds", *alike))],
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def command_line(sweep: Sweep, point: Mapping[str, Any], flags: Sequence[str]) -> str:
    """Return the command line that runs a point again, given its varied parameters."""
    words = fit_words(sweep, {**point, **sweep.space.constants}, None)
    return f"pfl fit {shlex.join([*words, *flags])}"
