"""A picture of the differences between settings and their mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pfl.results import names
from pfl.results.runs import At
from pfl.results.settings import Setting
from pfl.results.style import COLOURS, WIDTH, panels, per_cent, wrapped


def differences(settings: Sequence[Setting], metric: str, at: At) -> Figure:
    """Draw each setting's metric minus the mean over the settings, annotated with its value.

    The metric of a setting is the mean over its seeds.

    Raises:
        RunError: A run lacks the metric.
    """
    values = np.array([setting.values(metric, at).mean() for setting in settings])
    apart, places = values - values.mean(), np.arange(len(values))
    figure, (panel,) = panels(1, WIDTH * min(1, 0.2 + 0.12 * len(values)), 2.2)
    panel.axhline(0, color="black", linewidth=0.8)
    panel.bar(places, apart, width=0.6, color=COLOURS[0])
    shown = 100 * values if names.in_per_cent(metric) else values
    for place, height, value in zip(places, apart, shown, strict=True):
        above = "bottom" if height >= 0 else "top"
        panel.annotate(f"{value:.2f}", (place, height), ha="center", va=above)
    panel.set_xticks(places, [wrapped(setting.label, 0.9) for setting in settings])
    panel.grid(visible=False, axis="x")
    widest = max(np.abs(apart).max(), 1e-3)
    panel.set_ylim(-1.35 * widest, 1.35 * widest)
    panel.set_ylabel(f"{names.score(metric)},\nminus the mean of all")
    if names.in_per_cent(metric):
        per_cent(panel.yaxis)
    return figure
