"""The picture of a leaderboard: differences from tuned FedAvg-FT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pfl.extras.bench.rows import LABELS, TUNED_REFERENCE
from pfl.extras.bench.standing import LEVEL, Standing
from pfl.results.style import WIDTH, panels, styled


def differences(lines: Sequence[Standing], scale: int) -> Figure:
    """Plot each method's difference from tuned FedAvg-FT with its 95 % interval of the paired t.

    Right is better. Filled points are significant among all methods. The worst tenth of the methods
    is omitted if it is far off.
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
