"""The pictures of reliability, and of each client's model on all clients' data."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from pfl.results.analyses import Kind
from pfl.results.files import RunError, read_table
from pfl.results.matrices import name_clients
from pfl.results.runs import At
from pfl.results.settings import Setting
from pfl.results.style import HEAT, WIDTH, Look, legend_above, panels, per_cent, wrapped

CROSS, RELIABILITY = "cross.csv", "reliability.csv"


def reliability(settings: Sequence[Setting]) -> Figure:
    """Draw accuracy against confidence over all clients' test samples, and a histogram below.

    Below the diagonal a model is overconfident.

    Raises:
        RunError: No run has counts from after its last round.
    """
    counts = {setting.label: _pooled(setting) for setting in settings}
    counts = {label: pooled for label, pooled in counts.items() if len(pooled)}
    if not counts:
        raise RunError(
            "reliability was not measured after the last round; measure it with pfl test --config "
            "RUN/config.yaml --ckpt_path RUN --reliability"
        )
    figure = Figure(figsize=(0.5 * WIDTH, 0.55 * WIDTH), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, zorder=1)
    for number, setting in enumerate(settings):
        if setting.label not in counts:
            continue
        pooled, look = counts[setting.label], Look.of(number)
        confidence, share = pooled["confidence"], pooled["samples"] / pooled["samples"].sum()
        above.plot(confidence, pooled["accuracy"], label=setting.label, **look.marked)
        below.plot(confidence, share, **look.marked)
    above.set_ylabel("accuracy")
    below.set_ylabel("samples")
    below.set_xlabel("confidence of the personal models on test data")
    below.set_yscale("log")
    for axis in (above.yaxis, below.xaxis, below.yaxis):
        per_cent(axis)
    above.set_ylim(-0.02, 1.02)
    legend_above(figure, above)
    return figure


def _pooled(setting: Setting) -> pd.DataFrame:
    """Return, by bin, samples, mean confidence and accuracy over a setting's clients and runs.

    Runs that were not measured after their last round are left out.
    """
    needed = ("round", "bin", "samples", "confidence", "accuracy")
    tables = ((run.round, read_table(run.path / RELIABILITY, needed)) for run in setting.runs)
    rows = pd.concat([table[table["round"] == last] for last, table in tables])
    means = rows[["confidence", "accuracy"]]
    sums = means.mul(rows["samples"], axis=0).assign(samples=rows["samples"])
    sums = sums.groupby(rows["bin"]).sum()
    return sums.assign(**{name: sums[name] / sums["samples"] for name in means.columns})


def cross(settings: Sequence[Setting]) -> Figure:
    """Draw the score of each client's model on each client's test data, of the first run.

    Raises:
        RunError: No run has the file.
    """
    drawn = [(s.label, s.runs[0]) for s in settings if (s.runs[0].path / CROSS).is_file()]
    if not drawn:
        raise RunError(f"no run has a file {CROSS}: write it with pfl test --cross")
    figure, axes = panels(len(drawn), WIDTH * min(1, 0.5 * len(drawn)), 3.0)
    for panel, (label, run) in zip(axes, drawn, strict=True):
        table = read_table(run.path / CROSS, ("model", "client", "score"))
        matrix = table.pivot(index="model", columns="client", values="score")
        image = panel.imshow(matrix, cmap=HEAT, aspect="auto")
        figure.colorbar(image, ax=panel, label=f"test {run.main}", shrink=0.8)
        panel.set_title(wrapped(label, WIDTH / len(drawn)))
        panel.set_xlabel("test data of")
        panel.set_ylabel("model of")
        name_clients(panel, run, matrix.index.to_numpy(), matrix.columns.to_numpy())
    return figure


def _reliability(settings: Sequence[Setting], metric: str, at: At) -> Figure:
    return reliability(settings)


def _cross(settings: Sequence[Setting], metric: str, at: At) -> Figure:
    return cross(settings)


PICTURES = {
    "reliability": Kind(
        "Accuracy of the personal models against their confidence; on the diagonal both are equal.",
        _reliability,
    ),
    "cross": Kind(
        "Score of each client's model (rows) on each client's test data (columns).",
        _cross,
        lambda run: (run.path / CROSS).is_file(),
    ),
}
