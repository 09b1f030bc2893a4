"""The pictures of a leaderboard: mean ranks with a critical difference, scores by budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pfl.bench.standing import Standing, alike, critical_difference, expected_best, validations
from pfl.results.style import WIDTH, Look, legend_above, panels, styled


def ranks(lines: Sequence[Standing]) -> Figure:
    """Draw mean ranks; a bar joins methods that differ by less than the critical difference.

    Args:
        lines: The lines of a leaderboard, best first.
    """
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

    Args:
        lines: The lines of a leaderboard.
        more: Whether more of the score is better.
    """
    with styled():
        figure, (axes,) = panels(1, WIDTH, 2.8)
        for number, one in enumerate(sorted(lines, key=lambda one: one.label)):
            values = validations(one.row)
            if not values:
                continue
            best = (1 if more else -1) * np.array(expected_best(values))
            axes.plot(np.arange(len(best)) + 1, best, label=one.label, **Look.of(number).marked)
        axes.set_xlabel("trials")
        axes.set_ylabel("expected best validation score")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        legend_above(figure, axes)
    return figure
