"""Reliability diagrams: accuracy against confidence of the personal models.

They are drawn from the counts that :mod:`pfl.federation.reliability` wrote into run folders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pfl.results.files import Floats, RunError, Table
from pfl.results.runs import RunFolder
from pfl.results.settings import Setting
from pfl.results.style import WIDTH, Look, legend_above, per_cent

FILE = "reliability.csv"


def diagram(settings: Sequence[Setting]) -> Figure:
    """Draw accuracy against confidence over all clients' test samples, and a histogram below.

    Below the diagonal a model is overconfident.

    Raises:
        RunError: No run has counts from after its last round.
    """
    found = {setting.label: _pooled(setting) for setting in settings}
    found = {label: pooled for label, pooled in found.items() if len(pooled)}
    if not found:
        raise RunError(
            "reliability was not measured after the last round; measure it by pfl test --config "
            "RUN/config.yaml --ckpt_path RUN --reliability"
        )
    figure = Figure(figsize=(0.5 * WIDTH, 0.55 * WIDTH), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, zorder=1)
    for number, setting in enumerate(settings):
        if setting.label not in found:
            continue
        samples, confidence, accuracy = found[setting.label].T
        look = Look.of(number)
        style = {"color": look.color, "linestyle": look.linestyle, "marker": look.marker}
        above.plot(confidence, accuracy, label=setting.label, **style)
        below.plot(confidence, samples / samples.sum(), **style)
    above.set_ylabel("accuracy")
    below.set_ylabel("samples")
    below.set_xlabel("confidence of the personal models on test data")
    below.set_yscale("log")
    for axis in (above.yaxis, below.xaxis, below.yaxis):
        per_cent(axis)
    above.set_ylim(-0.02, 1.02)
    legend_above(figure, above)
    return figure


def _pooled(setting: Setting) -> Floats:
    """Return (bins, 3) samples, mean confidence and accuracy over a setting's clients and runs."""
    tables = [_counted(run) for run in setting.runs]
    rows = np.concatenate(tables)
    return np.array(
        [
            [samples.sum(), (samples @ sure) / samples.sum(), (samples @ right) / samples.sum()]
            for number in np.unique(rows[:, 0])
            for samples, sure, right in [rows[rows[:, 0] == number, 1:].T]
        ]
    )


def _counted(run: RunFolder) -> Floats:
    """Return (rows, 4) bin, samples, confidence, accuracy; no rows if not of the last round."""
    table = Table.read(run.path / FILE)
    if len(table) == 0 or table["round"][0] != run.round:
        return np.zeros((0, 4))
    return np.stack([table[name] for name in ("bin", "samples", "confidence", "accuracy")], 1)
