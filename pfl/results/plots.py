"""Pictures of a metric: against rounds, costs and data sizes, and over clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from pfl.results import names
from pfl.results.files import Floats, RunError
from pfl.results.learnt_nothing import levels
from pfl.results.runs import At
from pfl.results.settings import Setting
from pfl.results.style import (
    WIDTH,
    Look,
    draw_mean,
    label_rounds,
    legend_above,
    panels,
    per_cent,
    wrapped,
)

# With more clients than this, single clients are not drawn beside a box.
_DOTS = 200
# Costs that differ by more than this factor get a logarithmic axis.
_FAR_MORE = 8
# With more settings than this, single clients are not drawn: the dots would hide each other.
_CLOUDS = 3
# Clients of similar size are averaged: clients in a group, and least and most groups in a line.
_GROUP, _LEAST_GROUPS, _MOST_GROUPS = 5, 3, 12


def curves(settings: Sequence[Setting], metric: str) -> Figure:
    """Draw a metric against rounds, bytes moved and seconds.

    Seconds are those of training and aggregation; or simulated ones, if every run has them.

    For several seeds, the mean and a band of one standard error are drawn, at the rounds after
    which all seeds were tested; bytes and seconds are means too.

    Raises:
        RunError: A run lacks the metric, or the seeds of a setting were never tested after the same
            round.
    """
    figure, axes = panels(3, WIDTH, 2.1, sharey=True)
    simulated = all(run.simulated is not None for s in settings for run in s.runs)
    seconds = "simulated" if simulated else "seconds"
    for number, setting in enumerate(settings):
        rounds = _common_rounds(setting, metric)
        values = np.stack([run.values(metric, rounds) for run in setting.runs])
        moved, passed = (
            np.mean([getattr(r, what)[r.metrics.index.isin(rounds)] for r in setting.runs], 0)
            for what in ("bytes", seconds)
        )
        for panel, x in zip(axes, (rounds, moved, passed), strict=True):
            every = max(1, len(x) // 6)
            # Different offsets separate the markers of lines that meet.
            marks = {"markevery": (number % every, every), "label": _label(setting)}
            draw_mean(panel, x, values, Look.of(number), **marks)
    model = names.model(metric)
    axes[0].set_ylabel(names.score(metric) + f"\n({model})" * bool(model))
    label_rounds(axes[0], "communication rounds")
    axes[1].set_xlabel("moved both ways")
    axes[2].set_xlabel("simulated" if simulated else "training and aggregation")
    for panel in axes[1:]:
        _spread_costs(panel)
    _draw_levels(axes, settings, metric)
    axes[1].xaxis.set_major_formatter(EngFormatter("B"))
    axes[2].xaxis.set_major_formatter(EngFormatter("s"))
    per_cent_of(axes[0].yaxis, metric)
    legend_above(figure, axes[0])
    return figure


def _draw_levels(axes: Sequence[Axes], settings: Sequence[Setting], metric: str) -> None:
    """Draw the scores without learning, if they are the same for all runs and near their scores."""
    (found, *others) = [levels(run, metric) for setting in settings for run in setting.runs]
    low, high = axes[0].get_ylim()
    for (what, level), dash in zip(found.items(), (":", "-."), strict=False):
        if all(found == other for other in others) and low - (high - low) <= level:
            for panel in axes:
                panel.axhline(level, color="#7F7F7F", linestyle=dash, linewidth=1, label=what)


def _spread_costs(panel: Axes) -> None:
    """Start an axis of costs at zero; beyond its first steps it is logarithmic if costs differ."""
    costs = np.concatenate([np.asarray(line.get_xdata(), np.float64) for line in panel.lines])
    totals = [np.asarray(line.get_xdata(), np.float64)[-1] for line in panel.lines]
    spent = [total for total in totals if total > 0]
    panel.xaxis.set_major_locator(MaxNLocator(4))
    if spent and max(spent) > _FAR_MORE * min(spent):
        least = costs[costs > 0].min()
        panel.set_xscale("symlog", linthresh=10 ** np.floor(np.log10(least)))
    panel.set_xlim(left=0)
    if not spent:
        panel.set_xticks([0])


def _common_rounds(setting: Setting, metric: str) -> pd.Index[int]:
    rounds = reduce(pd.Index.intersection, [run.evaluated(metric) for run in setting.runs])
    if len(rounds) == 0:
        raise RunError(f"the runs of {setting.label} were never tested after the same round")
    return rounds


def clients(settings: Sequence[Setting], metric: str, at: At) -> Figure:
    """Draw the distribution of a metric over clients: a box and the clients for each setting.

    A client's value is its mean over the runs of a setting. The diamond is the mean over clients
    and the triangle the worst tenth, both taken from ``metrics.csv``.

    Raises:
        RunError: A run lacks the metric.
    """
    labels = [wrapped(_label(setting), 1.8) for setting in settings]
    # A row is as high as its box, or as the label beside it.
    height = max(0.36, *(0.1 + 0.135 * len(label.splitlines()) for label in labels))
    figure, (panel,) = panels(1, WIDTH, 0.9 + height * len(settings))
    for number, setting in enumerate(settings):
        values = np.sort(setting.per_client(metric, at)["value"])
        look = Look.of(number)
        panel.boxplot(
            values,
            positions=[number],
            orientation="horizontal",
            widths=0.55,
            showfliers=False,
            whis=(0, 100),
            boxprops={"color": look.color},
            whiskerprops={"color": look.color},
            capprops={"color": look.color},
            medianprops={"color": "black", "linewidth": 1.6},
        )
        if len(values) <= _DOTS:
            # Neighbours in rank get different heights, so that equal values do not overlap.
            heights = number + 0.2 * (np.arange(len(values)) % 5 - 2) / 2
            _dots(panel, values, heights, look, 9, 0.6)
        _marks(panel, number, setting, metric, at)
    panel.set_yticks(range(len(settings)), labels)
    panel.set_ylim(len(settings) - 0.4, -0.5)
    panel.grid(visible=False, axis="y")
    panel.set_xlabel(f"{names.score(names.of_client(metric))} of a client ({names.rounds(at)})")
    per_cent_of(panel.xaxis, metric)
    handles, names_of_marks = panel.get_legend_handles_labels()
    marks = dict(zip(names_of_marks, handles, strict=True))
    figure.legend(marks.values(), marks.keys(), loc="outside upper right", ncols=2)
    return figure


def _marks(panel: Axes, number: int, setting: Setting, metric: str, at: At) -> None:
    """Mark the mean over clients and the worst tenth, if the metric has them."""
    score = names.of_client(metric)
    for name, marker, label in ((score, "D", "mean"), (f"{score}_worst10", "^", "worst tenth")):
        if all(name in run.metrics for run in setting.runs):
            x = setting.values(name, at, by=metric).mean()
            style: dict[str, Any] = {"facecolor": "white", "edgecolor": "black", "zorder": 3}
            # Below the box, where it hides no client.
            panel.scatter([x], [number + 0.38], s=26, marker=marker, label=label, **style)


def _dots(
    panel: Axes, x: ArrayLike, y: ArrayLike, look: Look, size: float, alpha: float, label: str = ""
) -> None:
    style: dict[str, Any] = {"alpha": alpha, "linewidths": 0, "label": label or None}
    panel.scatter(x, y, s=size, c=look.color, marker=look.marker, **style)


def data_size(settings: Sequence[Setting], metric: str, at: At) -> Figure:
    """Draw a metric against the number of a client's training samples.

    Clients are dots if there are few settings. If there are enough clients for three groups, lines
    connect the means over groups of clients of similar size.

    Raises:
        RunError: A run lacks the metric.
    """
    figure, (panel,) = panels(1, 0.65 * WIDTH, 2.6)
    for number, setting in enumerate(settings):
        scores, look = setting.per_client(metric, at), Look.of(number)
        sizes, values = scores["samples"], scores["value"]
        count = min(len(sizes) // _GROUP, _MOST_GROUPS)
        if count < _LEAST_GROUPS:
            _dots(panel, sizes, values, look, 20, 0.8, _label(setting))
            continue
        if len(settings) <= _CLOUDS:
            _dots(panel, sizes, values, look, 12, 0.35)
        means = scores.groupby(_of_like_size(sizes, count)).mean()
        panel.plot(means["samples"], means["value"], label=_label(setting), **look.marked)
    _spread_sizes(panel, np.concatenate([run.samples for s in settings for run in s.runs]))
    panel.set_xlabel("training samples of a client")
    panel.set_ylabel(f"{names.score(names.of_client(metric))}\n({names.rounds(at)})")
    per_cent_of(panel.yaxis, metric)
    legend_above(figure, panel)
    return figure


def _of_like_size(sizes: pd.Series[float], count: int) -> NDArray[np.intp]:
    """Return the numbers of up to ``count`` groups; clients of equal size share a group."""
    least = np.unique([group[0] for group in np.array_split(np.sort(sizes), count)])
    return np.searchsorted(least, sizes, side="right")


def _spread_sizes(panel: Axes, sizes: Floats) -> None:
    """Label whole numbers; make the axis logarithmic if sizes span orders of magnitude."""
    sizes = sizes[sizes > 0]
    if sizes.max() <= 20 * sizes.min():
        panel.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        return
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def per_cent_of(axis: Axis, metric: str) -> None:
    """Label an axis in per cent if its metric is shown so."""
    if names.in_per_cent(metric):
        per_cent(axis)


def _label(setting: Setting) -> str:
    unfinished = [run for run in setting.runs if not run.finished]
    if not unfinished:
        return setting.label
    return f"{setting.label} (unfinished, round {min(run.round for run in unfinished)})"
