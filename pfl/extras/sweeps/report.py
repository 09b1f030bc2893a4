"""The outcome of a sweep: its points, best first, as a table and a file, and Optuna's pictures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import matplotlib
import optuna
from matplotlib import pyplot
from optuna.importance import FanovaImportanceEvaluator
from optuna.trial import TrialState
from optuna.visualization import matplotlib as visualization

from pfl.core.sheet import Sheet
from pfl.extras.sweeps.points import Points, value_text
from pfl.results import names
from pfl.results.pictures import Picture, write
from pfl.results.style import styled

# With fewer points, shares of variance are meaningless.
LEAST = 8
_ORDER = ("done", "stopped", "failed", "running")


def outcomes(points: Points) -> list[dict[str, Any]]:
    """Return a record for each point: finished ones first, best before worse, then the stopped.

    Its keys are ``point`` (from 1), ``state`` (``stopped`` means early), the varied parameters, the
    metric (at the end, or where the run was stopped), ``seconds`` of its rounds, ``folder`` and
    ``reason`` (why it was not finished).
    """
    metric, records = points.sweep.metric, list[tuple[tuple[float, ...], dict[str, Any]]]()
    for number, trial in points.trials().items():
        told = {"state": "running", "reason": "", **trial.user_attrs}
        value = None if told["state"] == "failed" else trial.value
        record = {"point": number + 1, "state": told["state"], **points.sweep.point(trial.params)}
        record |= {metric.name: value, "seconds": told.get("seconds")}
        record |= {"folder": told.get("folder"), "reason": told["reason"]}
        rank = (_ORDER.index(told["state"]), metric.sign * (value or 0), number)
        records.append((rank, record))
    return [record for _, record in sorted(records, key=lambda pair: pair[0])]


def sheet(points: Points, records: list[dict[str, Any]]) -> Sheet:
    """Return the table of all points for people."""
    metric, short = points.sweep.metric.name, points.sweep.short
    title = f"{points.sweep.path.stem}: {names.described(metric)}, best first"
    shown = {"point": "#", **short, metric: "value", "seconds": "seconds", "state": ""}
    rows = [["-" if one[key] is None else value_text(one[key]) for key in shown] for one in records]
    return Sheet(title, [*shown.values()], rows, records=records, optional=["seconds"])


def draw(points: Points) -> Iterator[str]:
    """Write Optuna's pictures of the points; yield a line for each."""
    score, study = names.score(points.sweep.metric.name), points.study
    alike = _comparable(points)
    different = len({one.value for one in alike.trials})
    fanova = FanovaImportanceEvaluator(seed=0)
    kinds: dict[str, Any] = {
        "parallel_coordinates": partial(visualization.plot_parallel_coordinate, target_name=score),
        "importance": partial(visualization.plot_param_importances, evaluator=fanova),
    }
    if len(points.sweep.varied) == 1:
        kinds = {"slice": partial(visualization.plot_slice, target_name=score)}
    elif different < LEAST:
        yield f"no picture importance: it needs {LEAST} points with different values"
        del kinds["importance"]
    whole: dict[Any, Any] = {"figure.constrained_layout.use": True}  # no label is cut off
    for name, plot in kinds.items():
        with styled(), matplotlib.rc_context(whole), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls its pictures experimental
            figure = plot(alike if name == "importance" else study).figure
            # Out of pyplot's list, which holds figures until they are closed.
            pyplot.close(figure)
            for path in write([Picture(name, figure)], points.folder, ("png", "svg")):
                yield f"wrote {path}"


def _comparable(points: Points) -> optuna.Study:
    """Return the finished points; if some were stopped, all with their values at the first stop.

    The points that ran to the end are too similar to show what matters.
    """
    known = [one for one in points.trials().values() if one.user_attrs.get("state") != "failed"]
    stops = [one.last_step or 0 for one in known if one.state == TrialState.PRUNED]
    study = optuna.create_study()
    for one in known:
        value = one.intermediate_values.get(min(stops)) if stops else one.value
        if value is not None:
            parts: dict[str, Any] = {"params": one.params, "distributions": one.distributions}
            study.add_trial(optuna.create_trial(value=value, **parts))
    return study
