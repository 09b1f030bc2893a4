"""Pictures of a sweep: parallel coordinates of all points, and the importance of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray
from optuna.importance import FanovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState

from pfl.results import names
from pfl.results.pictures import Picture
from pfl.results.style import COLOURS, HEAT, WIDTH, panels, per_cent, styled, wrapped
from pfl.sweeps.file import Sweep
from pfl.sweeps.outcome import Outcome, outcomes, short_names, text
from pfl.sweeps.search import failed
from pfl.sweeps.space import Categorical, Parameter, Range

# With fewer points, shares of variance are meaningless.
LEAST = 8


@dataclass(frozen=True)
class _Axis:
    """A vertical axis: heights of the values between 0 and 1, and its ticks with labels."""

    label: str
    heights: NDArray[np.float64]
    ticks: Sequence[float]
    words: Sequence[str]


def draw(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[Picture]:
    """Draw both pictures; one that cannot be drawn has the reason instead.

    Args:
        sweep: The sweep.
        trials: The last trial of each point.
    """
    drawn = []
    with styled():
        for name in ("parallel_coordinates", "importance"):
            try:
                if name == "importance":
                    drawn.append(Picture(name, importance(sweep, trials)))
                else:
                    drawn.append(
                        Picture(name, parallel_coordinates(sweep, outcomes(sweep, trials)))
                    )
            except ValueError as error:
                drawn.append(Picture(name, refusal=str(error)))
    return drawn


def parallel_coordinates(sweep: Sweep, found: Sequence[Outcome]) -> Figure:
    """Draw each point as a line across its parameters to the metric; darker lines are better.

    The best point is highlighted; dashed lines were stopped early and end at their last value.

    Args:
        sweep: The sweep.
        found: All points, best first.

    Raises:
        ValueError: No point has a value.
    """
    shown = [one for one in found if one.value is not None and np.isfinite(one.value)]
    if not shown:
        raise ValueError("no point has a value yet")
    labels = short_names(list(sweep.space.varied))
    axes = [
        _axis(labels[name], parameter, [one.values[name] for one in shown])
        for name, parameter in sweep.space.varied.items()
    ]
    axes.append(_metric_axis(sweep.metric.name, [float(one.value or 0) for one in shown]))
    figure, (panel,) = panels(1, WIDTH, 2.8)
    colours = matplotlib.colormaps[HEAT](np.linspace(0, 0.85, len(shown)))
    # The best is drawn last, on top of the others.
    for place in reversed(range(len(shown))):
        style: dict[str, Any] = {"color": colours[place], "linewidth": 0.9}
        if place == 0 and shown[0].done:
            style = {"color": COLOURS[1], "linewidth": 2.2, "marker": "o"}
        elif not shown[place].done:
            style |= {"linestyle": (0, (4, 2))}
        panel.plot(range(len(axes)), [axis.heights[place] for axis in axes], **style)
    for x, axis in enumerate(axes):
        _draw_axis(panel, x, axis, last=x == len(axes) - 1)
    panel.set_xticks(
        range(len(axes)), [wrapped(axis.label, 0.8 * WIDTH / len(axes)) for axis in axes]
    )
    panel.tick_params(axis="x", length=0)
    panel.set_xlim(-0.3, len(axes) - 0.75)
    panel.set_ylim(-0.06, 1.06)
    panel.yaxis.set_visible(False)
    panel.grid(visible=False)
    for side in ("left", "bottom"):
        panel.spines[side].set_visible(False)
    _legend(figure, found, colours[0])
    return figure


def _axis(label: str, parameter: Parameter, values: Sequence[Any]) -> _Axis:
    if isinstance(parameter, Categorical):
        choices, last = list(parameter.values), max(1, len(parameter.values) - 1)
        at = np.array([choices.index(value) for value in values]) / last
        # Lines that meet at the same choice are spread a little, the better above.
        spread = np.linspace(0.5, -0.5, len(values)) if len(values) > 1 else np.zeros(1)
        room = min(0.06, 0.5 / last)
        ticks = np.arange(len(choices)) / last
        return _Axis(label, at + room * spread, list(ticks), [text(choice) for choice in choices])
    return _scaled(label, parameter.low, parameter.high, values, parameter)


def _metric_axis(name: str, values: Sequence[float]) -> _Axis:
    axis = _scaled(names.score(name), min(values), max(values), values)
    if not names.in_per_cent(name):
        return axis
    return _Axis(axis.label, axis.heights, axis.ticks, [f"{100 * float(w):g}%" for w in axis.words])


def _scaled(
    label: str, low: float, high: float, values: Sequence[float], parameter: Range | None = None
) -> _Axis:
    log = parameter is not None and parameter.log
    if high == low:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)

    def height(value: Any) -> NDArray[np.float64]:  # noqa: ANN401
        scale = np.log if log else np.asarray
        shown = (scale(value) - scale(low)) / (scale(high) - scale(low))
        return np.asarray(shown, np.float64)

    whole = parameter is not None and parameter.whole
    near = (1.0, 2.0, 5.0) if log and high < 50 * low else (1.0,)
    locator = LogLocator(subs=near, numticks=6) if log else MaxNLocator(5, integer=whole)
    ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    if len(ticks) < 2:
        ticks = [low, high]
    return _Axis(label, height(values), list(height(ticks)), [f"{tick:.4g}" for tick in ticks])


def _draw_axis(panel: Axes, x: int, axis: _Axis, last: bool) -> None:
    """Draw an axis with its labels to the left, or to the right for the last axis."""
    panel.vlines(x, 0, 1, color="black", linewidth=0.8, zorder=1)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    side, place = (1, "left") if last else (-1, "right")
    for height, word in zip(axis.ticks, axis.words, strict=True):
        panel.hlines(height, x, x + side * 0.015, color="black", linewidth=0.8)
        panel.text(x + side * 0.03, height, word, ha=place, va="center", zorder=4, bbox=box)


def _legend(figure: Figure, found: Sequence[Outcome], colour: Any) -> None:  # noqa: ANN401
    best = found[0]
    lines = []
    if best.done:
        label = f"best: point {best.number}"
        lines.append(Line2D([], [], color=COLOURS[1], linewidth=2.2, marker="o", label=label))
    others = [one for one in found[1:] if one.value is not None]
    if any(one.done for one in others):
        lines.append(Line2D([], [], color=colour, label="others, the darker the better"))
    if not all(one.done for one in others):
        label = "stopped early"
        lines.append(Line2D([], [], color=colour, linestyle=(0, (4, 2)), label=label))
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines))


def _comparable(trials: Sequence[FrozenTrial]) -> tuple[list[FrozenTrial], int | None]:
    """Return trials with comparable values, and after how many values if not at the end."""
    stopped = [t for t in trials if t.state == TrialState.PRUNED and not failed(t)]
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    count = min((trial.last_step or 0 for trial in stopped), default=None)
    if count is None:
        return done, None
    found = []
    for trial in (*done, *stopped):
        value = trial.intermediate_values.get(count, np.nan)
        if np.isfinite(value):
            found.append(
                optuna.create_trial(
                    value=value, params=trial.params, distributions=trial.distributions
                )
            )
    return found, count


def importance(sweep: Sweep, trials: Sequence[FrozenTrial]) -> Figure:
    """Draw the share of the metric's variance over the search space that each parameter explains.

    The rest, up to 100 %, is explained by interactions of parameters. If points were stopped early,
    all points are compared by their values at the time of the first stop, because the finished
    points alone are too similar.

    The shares are computed by Optuna's functional ANOVA (Hutter, Hoos and Leyton-Brown, "An
    Efficient Approach for Assessing Hyperparameter Importance", ICML 2014), without failed points.

    Args:
        sweep: The sweep.
        trials: The last trial of each point.

    Raises:
        ValueError: There are too few points, all values are equal, or only one parameter varies.
    """
    if len(sweep.space.varied) < 2:
        raise ValueError("importance compares parameters, but only one is searched")
    values, count = _comparable(trials)
    if len(values) < LEAST:
        raise ValueError(f"importance needs {LEAST} points with a value, got {len(values)}")
    if len({trial.value for trial in values}) == 1:
        raise ValueError("importance needs different values, but those of all points are equal")
    study = optuna.create_study()
    study.add_trials(values)
    found = FanovaImportanceEvaluator(seed=0).evaluate(study)
    shares = dict(sorted(found.items(), key=lambda item: -item[1]))
    labels = short_names(list(sweep.space.varied))
    figure, (panel,) = panels(1, 0.65 * WIDTH, 0.8 + 0.3 * len(shares))
    bars = panel.barh(
        [labels[name] for name in shares], list(shares.values()), 0.6, color=COLOURS[0]
    )
    panel.bar_label(bars, [f"{share:.0%}" for share in shares.values()], padding=3)
    panel.invert_yaxis()
    panel.grid(visible=False, axis="y")
    panel.set_xlim(0, 1)
    per_cent(panel.xaxis)
    score = names.score(sweep.metric.name)
    after = "" if count is None else f" after {count} values"
    told = f"share of the variance of {score}{after} explained by it alone ({len(values)} points)"
    panel.set_xlabel(wrapped(told, 4))
    return figure
