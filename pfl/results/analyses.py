"""Pictures of the tables that analyses wrote into run folders.

See :mod:`pfl.callbacks`, and :mod:`pfl.federation.reliability` for the counts of reliability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import entropy

from pfl.results.files import RunError, read_table
from pfl.results.settings import Setting
from pfl.results.style import (
    COLOURS,
    WIDTH,
    Look,
    label_rounds,
    legend_above,
    panels,
    per_cent,
    wrapped,
)

RELIABILITY = "reliability.csv"
_PALE = "#B0B0B0"


# The table of each setting that has one, by its label.
Tables: TypeAlias = Mapping[str, pd.DataFrame]


def traces(tables: Tables) -> Figure:
    """Draw the Fisher trace of every client over rounds, and their mean."""
    figure, axes = panels(len(tables), WIDTH, 2.4, sharey=True)
    for panel, (label, table) in zip(axes, tables.items(), strict=True):
        values, trained = _by_client(table, "trace"), _by_client(table, "trained")
        panel.plot(values, color=_PALE, linewidth=0.6)
        panel.plot(values.where(trained > 0), ".", color=COLOURS[0], ms=2.5)
        panel.plot(values.mean(axis=1), color="black", linewidth=2, label="mean")
        panel.set_title(wrapped(label, WIDTH / len(tables)))
        label_rounds(panel)
    axes[0].set_ylabel("trace of Fisher information")
    axes[0].plot([], [], color=_PALE, linewidth=0.6, label="a client")
    axes[0].plot([], [], ".", color=COLOURS[0], label="it took part")
    legend_above(figure, axes[0])
    return figure


def stragglers(tables: Tables) -> Figure:
    """Draw the share of each client in the sum of all Fisher traces.

    The left panel shows the mean over rounds and the lowest and highest round, first of the clients
    that took part in every round, then of the others, the stragglers. The right panel shows the
    mean of both groups over rounds. Only the first setting is drawn.

    Raises:
        RunError: The run has no stragglers.
    """
    table = next(iter(tables.values()))
    values = _by_client(table, "trace")
    late = ~(_by_client(table, "trained") > 0).all()
    if not late.any() or late.all():
        raise RunError(
            "stragglers are drawn only if some clients took part in every round and others did not"
        )
    shares = values.div(values.sum(axis=1), axis=0)
    figure, axes = panels(2, WIDTH, 2.3)
    place = 0
    for number, (label, group) in enumerate((("in every round", ~late), ("stragglers", late))):
        held, color = shares.loc[:, group], COLOURS[number]
        x, middle = place + np.arange(held.shape[1]), held.mean()
        spread = np.abs(np.stack([held.min(), held.max()]) - middle.to_numpy())
        axes[0].bar(x, middle, yerr=spread, color=color, error_kw={"linewidth": 0.7}, label=label)
        axes[1].plot(held.mean(axis=1), color=color, marker=Look.of(number).marker)
        place += held.shape[1]
    axes[0].set_xlabel("clients")
    axes[0].set_xticks([])
    axes[0].set_ylabel("trace over the sum of all")
    axes[1].set_ylabel("mean of the group")
    highest = max(shares.loc[:, group].mean(axis=1).max() for group in (late, ~late))
    axes[1].set_ylim(0, 1.1 * highest)
    label_rounds(axes[1])
    legend_above(figure, axes[0])
    return figure


def replaced(tables: Tables) -> Figure:
    """Draw the score, weighted by samples, after a share of the parameters was replaced.

    These are the parameters with the most Fisher information, or random ones.
    """
    figure, axes = panels(len(tables), WIDTH * min(1, 0.5 * len(tables)), 2.3, sharey=True)
    for panel, (label, table) in zip(axes, tables.items(), strict=True):
        sums = table.assign(score=table["score"] * table["test_samples"])
        sums = sums.groupby(["highest", "share"])[["score", "test_samples"]].sum()
        means = sums["score"] / sums["test_samples"]
        for number, (highest, name) in enumerate(((1, "highest information"), (0, "random"))):
            panel.plot(means[highest], label=name, **{**Look.of(number).marked, "linestyle": "-"})
        panel.set_title(wrapped(label, WIDTH / len(tables)))
        panel.set_xlabel("replaced parameters")
        per_cent(panel.xaxis)
        per_cent(panel.yaxis)
        panel.set_ylim(bottom=0)
    axes[0].set_ylabel("test score, by samples")
    legend_above(figure, axes[0])
    return figure


def spectrum(tables: Tables) -> Figure:
    """Draw the classifier's singular values after the last round, divided by the largest.

    The left panel shows the server's classifier; the right one shows the median and the quartiles
    over the clients that trained, before averaging. The legend gives the effective rank of the
    server's values or, without them, of the median: the exponential of the entropy of their shares.
    """
    figure, axes = panels(2, WIDTH, 2.3, sharey=True)
    for number, (label, table) in enumerate(tables.items()):
        last = table[table["round"] == table["round"].max()]
        each = last[last["client"] >= 0].pivot(index="client", columns="index", values="value")
        look, of_server = Look.of(number), last["value"][last["client"] < 0]
        effective_rank = np.exp(entropy(of_server if len(of_server) else each.median()))
        legend = f"{label} ({effective_rank:.1f})"
        axes[0].plot(1 + np.arange(len(of_server)), of_server, label=legend, **look.line)
        if len(each):
            x = 1 + np.arange(each.shape[1])
            low, middle, high = each.quantile([0.25, 0.5, 0.75]).to_numpy()
            axes[1].plot(x, middle, **look.line)
            axes[1].fill_between(x, low, high, color=look.color, alpha=0.18)
    for panel, title in zip(axes, ("server", "clients after training"), strict=True):
        panel.set_title(title)
        panel.set_yscale("log")
        panel.set_xlabel("index")
    axes[0].set_ylabel("singular value over the largest")
    legend_above(figure, axes[0], least=1)  # which has the ranks
    return figure


def numbers(tables: Tables) -> Figure:
    """Draw the numbers that a method reports about its models after the last round.

    There is one column for each number: above, its cumulative distribution over clients; below, the
    number against the client's training samples. Numbers that are all positive have a logarithmic
    axis.
    """
    first = next(iter(tables.values()))
    names = [name for name in first.columns if name not in ("round", "client", "samples")]
    positive = {name: all((table[name] > 0).all() for table in tables.values()) for name in names}
    figure = Figure(figsize=(WIDTH, 4), layout="constrained")
    grid = figure.subplots(2, len(names), squeeze=False, sharex="col")
    for number, (label, table) in enumerate(tables.items()):
        last, look = table[table["round"] == table["round"].max()], Look.of(number)
        samples = last["samples"]
        for name, (above, below) in zip(names, grid.T, strict=True):
            values = last[name]
            share = np.arange(1, len(values) + 1) / len(values)
            above.plot(values.sort_values(), share, label=label, **look.line)
            below.plot(values, samples, look.marker, color=look.color, ms=2.5, alpha=0.6)
            for panel in (above, below):
                panel.set_xscale("log" if positive[name] else "linear")
            below.set_yscale("log")
            below.set_xlabel(name)
            per_cent(above.yaxis)
    grid[0, 0].set_ylabel("share of clients (cumulative)")
    grid[1, 0].set_ylabel("training samples of a client")
    legend_above(figure, grid[0, 0])
    return figure


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
            "reliability was not measured after the last round; measure it by pfl test --config "
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


# File of each picture, callback that writes it, function, and columns besides round and client.
PICTURES: Mapping[str, tuple[str, str, Callable[[Tables], Figure], tuple[str, ...]]] = {
    "fisher": ("fisher.csv", "FisherTraces", traces, ("trace", "trained")),
    "stragglers": ("fisher.csv", "FisherTraces", stragglers, ("trace", "trained")),
    "replacement": (
        *("replaced.csv", "ReplacedParameters", replaced),
        ("highest", "share", "score", "test_samples"),
    ),
    "spectrum": ("spectrum.csv", "ClassifierSpectrum", spectrum, ("index", "value")),
    "numbers": ("numbers.csv", "ModelNumbers", numbers, ("samples",)),
}


def draw(name: str, settings: Sequence[Setting]) -> Figure:
    """Draw one of :data:`PICTURES`, of the first of several seeds of each setting.

    Rows of a round that a killed process did not finish are left out.

    Raises:
        RunError: No run has the file, or it has nothing to draw.
    """
    file, callback, drawing, needed = PICTURES[name]
    tables = {}
    for setting in settings:
        run = setting.runs[0]
        table = read_table(run.path / file, ("round", "client", *needed))
        if len(table := table[table["round"] <= run.round]):
            tables[setting.label] = table
    if not tables:
        raise RunError(f"no run has a file {file}: run it with loop.callbacks: [{callback}]")
    return drawing(tables)


def _by_client(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return (rounds, clients) values of a column."""
    return table.pivot(index="round", columns="client", values=column)
