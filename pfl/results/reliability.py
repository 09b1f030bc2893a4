"""Draw reliability diagrams: how sure the personal models are, and how right.

Of the counts that :mod:`pfl.federation.reliability` wrote into the folders of runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from pfl.results.runs import Floats, RunError, RunFolder, Table
from pfl.results.settings import Setting
from pfl.results.style import WIDTH, Look, legend_above

FILE = "reliability.csv"


def diagram(settings: Sequence[Setting]) -> Figure:
    """Accuracy against confidence over all clients' test samples; below, how many are so sure.

    On the diagonal a model is as often right as it is sure to be; below it, it is too sure.

    Raises:
        RunError: There is no run whose bins were counted after its last round.
    """
    found = {setting.label: _pooled(setting) for setting in settings}
    found = {label: pooled for label, pooled in found.items() if len(pooled)}
    if not found:
        raise RunError(
            "reliability was not counted after the last round; to count it: pfl test --config "
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
    for axis in (above.yaxis, below.xaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    # A logarithmic axis shows shares below one per cent as well.
    below.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    above.set_ylim(-0.02, 1.02)
    legend_above(figure, above)
    return figure


def _pooled(setting: Setting) -> Floats:
    """(bins, 3) samples, mean confidence and accuracy, over all clients and runs of a setting."""
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
    """(rows, 4) bin, samples, confidence and accuracy; none if they are not of the last round."""
    table = Table.read(run.path / FILE)
    if len(table) == 0 or table["round"][0] != run.round:
        return np.zeros((0, 4))
    return np.stack([table[name] for name in ("bin", "samples", "confidence", "accuracy")], 1)
