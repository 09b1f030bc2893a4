"""The pictures of a leaderboard: mean ranks with a critical difference, scores by budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pfl.extras.bench.rows import ALWAYS
from pfl.extras.bench.standing import (
    Standing,
    alike,
    critical_difference,
    expected_best,
    validations,
)
from pfl.results.style import WIDTH, Look, legend_above, panels, styled

# Number of methods that the picture of budgets names beside those of every leaderboard.
LEADERS = 4


def ranks(lines: Sequence[Standing]) -> Figure:
    """Draw mean ranks; a bar joins methods that differ by less than the critical difference."""
    difference = critical_difference(len(lines), len(lines[0].tuned))
    places = [one.rank for one in lines]
    groups = alike(places, difference)
    with styled():
        figure, (axes,) = panels(1, WIDTH, 0.6 + 0.2 * len(lines))
        for height, one in enumerate(lines):
            axes.plot([one.low, one.high], [height, height], color="#7F7F7F", linewidth=1)
            axes.plot(one.rank, height, "o", color="#0072B2")
        for number, (first, last) in enumerate(groups):
            # Below the axis' end, so that bars hide no method.
            place = len(lines) - 0.4 + 0.3 * number
            axes.plot([places[first], places[last]], [place, place], color="#000000", linewidth=2.5)
        axes.set_yticks(range(len(lines)), [one.label for one in lines])
        axes.set_ylim(len(lines) - 0.2 + 0.3 * len(groups), -0.6)
        axes.set_xlabel(f"mean rank; critical difference {difference:.2f}")
    return figure


def budgets(lines: Sequence[Standing], more: bool) -> Figure:
    """Draw the expected best validation score against the number of trials.

    Those that every leaderboard has and the best of the others are named; the rest is grey, and
    leaves the picture where it is far below.
    """
    sign = 1 if more else -1
    tried = {str(one.row["method"]): validations(one.row) for one in lines}
    curves = {name: sign * np.array(expected_best(best)) for name, best in tried.items() if best}
    leaders = [name for name in curves if name not in ALWAYS][:LEADERS]
    shown = {*curves} & {*leaders, *ALWAYS}
    named = {one.label: curves[name] for one in lines if (name := one.row["method"]) in shown}
    with styled():
        figure, (axes,) = panels(1, WIDTH, 2.8)
        for values in curves.values():
            axes.plot(np.arange(len(values)) + 1, values, color="#D0D0D0", linewidth=0.8)
        for number, label in enumerate(sorted(named)):
            values = named[label]
            axes.plot(np.arange(len(values)) + 1, values, label=label, **Look.of(number).marked)
        heights = np.concatenate([*named.values()])
        margin = 0.1 * float(np.ptp(heights)) or 0.01
        axes.set_ylim(heights.min() - margin, heights.max() + margin)
        axes.set_xlabel("trials")
        axes.set_ylabel("expected best validation score")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        legend_above(figure, axes)
    return figure
