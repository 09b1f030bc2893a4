"""The pictures of a leaderboard: differences from tuned FedAvg-FT, scores by budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pfl.extras.bench.rows import ALWAYS, LABELS, TUNED_REFERENCE
from pfl.extras.bench.standing import LEVEL, Standing, expected_best, validations
from pfl.results.style import WIDTH, Look, legend_above, panels, styled

# Number of methods that the picture of budgets names beside those of every leaderboard.
LEADERS = 4


def differences(lines: Sequence[Standing], scale: int) -> Figure:
    """Draw each method's difference from tuned FedAvg-FT with its own 95 % interval of paired t.

    To the right is better. A full point is significant among all methods. The worst tenth of the
    methods is left out where it is far off.
    """
    tested = [(one.label, test) for one in lines if (test := one.test) is not None]
    least = 1.1 * min(0.0, float(np.percentile([test.low for _, test in tested], 10)))
    most = 1.1 * max(np.percentile([test.high for _, test in tested], 90), tested[0][1].difference)
    shown = [(label, test) for label, test in tested if test.difference > least]
    with styled():
        figure, (axes,) = panels(1, WIDTH, 0.6 + 0.2 * len(shown))
        axes.axvline(0, color="#7F7F7F", linewidth=0.8)
        for height, (_, test) in enumerate(shown):
            ends = [scale * test.low, scale * test.high]
            axes.plot(ends, [height, height], color="#7F7F7F", linewidth=1)
            filled = "#0072B2" if test.p_holm < LEVEL else "#FFFFFF"
            place = scale * test.difference
            axes.plot(place, height, "o", color="#0072B2", markerfacecolor=filled)
        axes.set_yticks(range(len(shown)), [label for label, _ in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(scale * least, scale * most)
        unit = " (points)" if scale == 100 else ""
        axes.set_xlabel(f"better than tuned {LABELS[TUNED_REFERENCE]} by{unit}")
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
