"""The pictures of a leaderboard: mean ranks with a critical difference, scores by budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pfl.bench.standing import (
    Standing,
    alike,
    critical_difference,
    expected_best,
    validations,
)
from pfl.results.style import WIDTH, Look, legend_above, panels, styled


def ranks(found: Sequence[Standing]) -> Figure:
    """Draw mean ranks; a bar joins methods that differ by less than the critical difference.

    Args:
        found: The lines of a leaderboard, best first.
    """
    difference = critical_difference(len(found), len(found[0].tuned))
    places = [one.rank for one in found]
    groups = alike(places, difference)
    with styled():
        figure, (axes,) = panels(1, WIDTH, 0.6 + 0.2 * len(found))
        for line, one in enumerate(found):
            axes.plot([one.low, one.high], [line, line], color="#7F7F7F", linewidth=1)
            axes.plot(one.rank, line, "o", color="#0072B2")
        for number, (first, last) in enumerate(groups):
            # Below the axis' end, so that bars hide no method.
            place = len(found) - 0.4 + 0.3 * number
            axes.plot([places[first], places[last]], [place, place], color="#000000", linewidth=2.5)
        axes.set_yticks(range(len(found)), [one.label for one in found])
        axes.set_ylim(len(found) - 0.2 + 0.3 * len(groups), -0.6)
        axes.set_xlabel(f"mean rank; critical difference {difference:.2f}")
    return figure


def budgets(found: Sequence[Standing], more: bool) -> Figure:
    """Draw the expected best validation score against the number of trials.

    Args:
        found: The lines of a leaderboard.
        more: Whether more of the score is better.
    """
    with styled():
        figure, (axes,) = panels(1, WIDTH, 2.8)
        for number, one in enumerate(sorted(found, key=lambda one: one.label)):
            values = validations(one.row)
            if not values:
                continue
            look = Look.of(number)
            sign = 1 if more else -1
            axes.plot(
                np.arange(1, len(values) + 1),
                sign * np.array(expected_best(values)),
                color=look.color,
                linestyle=look.linestyle,
                marker=look.marker,
                label=one.label,
            )
        axes.set_xlabel("trials")
        axes.set_ylabel("expected best validation score")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        legend_above(figure, axes)
    return figure
