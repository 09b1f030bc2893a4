"""Pictures of the tables that analyses wrote into run folders, and of reliability.

See :mod:`pfl.callbacks.analysis`, and :mod:`pfl.federation.reliability` for the counts of
reliability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import pandas as pd
from matplotlib.figure import Figure

from pfl.imports import plugins
from pfl.results.files import RunError, read_table
from pfl.results.runs import At, RunFolder
from pfl.results.settings import Setting
from pfl.results.style import WIDTH, Look, legend_above, per_cent

RELIABILITY = "reliability.csv"

# The table of each setting that has one, by its label.
Tables: TypeAlias = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    Attributes:
        caption: A sentence that says what it shows.
        draw: Draws it from settings, a metric, and the rounds to take numbers from.
        suits: Whether a run has the data for it, so that it is drawn by default.
    """

    caption: str
    draw: Callable[[Sequence[Setting], str, At], Figure]
    suits: Callable[[RunFolder], bool] = lambda run: True


def of_table(
    caption: str,
    file: str,
    callback: str,
    needed: Sequence[str],
    drawing: Callable[[Tables], Figure],
) -> Kind:
    """Return the kind of picture of a table that an analysis writes.

    It shows the first of several seeds of each setting, without rows of a round that a killed
    process did not finish.

    Args:
        caption: A sentence that says what it shows.
        file: Name of the table's file.
        callback: The callback that writes it.
        needed: Columns of the table, besides round and client.
        drawing: The function that draws it; it may raise ``RunError``.
    """

    def draw(settings: Sequence[Setting], metric: str, at: At) -> Figure:
        tables = {}
        for setting in settings:
            run = setting.runs[0]
            table = read_table(run.path / file, ("round", "client", *needed))
            if len(table := table[table["round"] <= run.round]):
                tables[setting.label] = table
        if not tables:
            how = f"run it with loop.callbacks: [{callback}]"
            raise RunError(f"no run has a file {file}: {how}")
        return drawing(tables)

    return Kind(caption, draw, lambda run: (run.path / file).is_file())


@cache
def brought() -> Mapping[str, Kind]:
    """Return the pictures of extras and plug-ins, by name.

    They are the mappings ``PICTURES`` of the modules in the entry-point group ``pfl.pictures``.
    """
    modules = plugins.loaded("pfl.pictures")
    return {name: picture for module in modules for name, picture in module.PICTURES.items()}


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
