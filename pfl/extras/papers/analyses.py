"""Pictures of papers: of this folder's analyses and of FedAS's Figure 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import entropy

from pfl.results import names
from pfl.results.analyses import Kind, Tables, of_table
from pfl.results.files import RunError
from pfl.results.plots import per_cent_of
from pfl.results.runs import At
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

_PALE = "#B0B0B0"


def traces(tables: Tables) -> Figure:
    """Plot the Fisher trace of every client over rounds, and their mean."""
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
    """Plot each client's share in the sum of all Fisher traces.

    The left panel shows the mean over rounds with the lowest and the highest round: first the
    clients that took part in every round, then the others, the stragglers. The right panel shows
    both groups' means over rounds. Only the first setting is drawn.

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
        own, color = shares.loc[:, group], COLOURS[number]
        x, middle = place + np.arange(own.shape[1]), own.mean()
        spread = np.abs(np.stack([own.min(), own.max()]) - middle.to_numpy())
        axes[0].bar(x, middle, yerr=spread, color=color, error_kw={"linewidth": 0.7}, label=label)
        axes[1].plot(own.mean(axis=1), color=color, marker=Look.of(number).marker)
        place += own.shape[1]
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
    """Plot the sample-weighted score after replacing a share of the parameters.

    The replaced parameters have the most Fisher information or are random.
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
    """Plot the classifier's singular values after the last round, relative to the largest.

    The left panel shows the server's classifier; the right one the median and quartiles over the
    clients that trained, before averaging. The legend gives the effective rank (the exponential of
    the entropy of the shares) of the server's values or, without these, of the median.
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
    legend_above(figure, axes[0], least=1)  # whose legend has the ranks
    return figure


def numbers(tables: Tables) -> Figure:
    """Plot the numbers that a method reports about its models after the last round.

    Each number has a column: above, its cumulative distribution over clients; below, its values
        against the clients' training samples. Positive numbers have a logarithmic axis.
    """
    first = next(iter(tables.values()))
    columns = [name for name in first.columns if name not in ("round", "client", "samples")]
    positive = {name: all((table[name] > 0).all() for table in tables.values()) for name in columns}
    figure = Figure(figsize=(WIDTH, 4), layout="constrained")
    grid = figure.subplots(2, len(columns), squeeze=False, sharex="col")
    for number, (label, table) in enumerate(tables.items()):
        last, look = table[table["round"] == table["round"].max()], Look.of(number)
        samples = last["samples"]
        for name, (above, below) in zip(columns, grid.T, strict=True):
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


def differences(settings: Sequence[Setting], metric: str, at: At) -> Figure:
    """Plot each setting's metric minus the mean over settings, annotated with its value.

    The metric of a setting is the mean over its seeds.

    Raises:
        RunError: A run lacks the metric, or its value is not a number.
    """
    values = np.array([setting.values(metric, at).mean() for setting in settings])
    finite = np.isfinite(values)
    if lacking := [s.label for s, known in zip(settings, finite, strict=True) if not known]:
        raise RunError(f"{metric} of {', '.join(lacking)} is not a number: there is no mean of all")
    apart, places = values - values.mean(), np.arange(len(values))
    figure, (panel,) = panels(1, WIDTH * min(1, 0.2 + 0.12 * len(values)), 2.2)
    panel.axhline(0, color="black", linewidth=0.8)
    bars = panel.bar(places, apart, width=0.6, color=COLOURS[0])
    scale, digits = names.scale(metric)
    panel.bar_label(bars, [f"{scale * value:.{digits}f}" for value in values], padding=3)
    panel.set_xticks(places, [wrapped(setting.label, 0.9) for setting in settings])
    panel.grid(visible=False, axis="x")
    widest = max(np.abs(apart).max(), 1e-3 * np.abs(values).max()) or 1
    panel.set_ylim(-1.35 * widest, 1.35 * widest)
    panel.set_ylabel(f"{names.score(metric)},\nminus the mean of all")
    per_cent_of(panel.yaxis, metric)
    return figure


def _by_client(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return (rounds, clients) values of a column."""
    return table.pivot(index="round", columns="client", values=column)


PICTURES: Mapping[str, Kind] = {
    "fisher": of_table(
        "Trace of the Fisher information of every client's model over rounds.",
        *("fisher.csv", "FisherTraces", ("trace", "trained"), traces),
    ),
    "stragglers": of_table(
        "Share of each client in the sum of all Fisher traces: mean, lowest and highest round; "
        "stragglers are clients that did not take part in every round.",
        *("fisher.csv", "FisherTraces", ("trace", "trained"), stragglers),
    ),
    "replacement": of_table(
        "After replacing a share of the clients' parameters: those with the most Fisher "
        "information, or random ones.",
        *("replaced.csv", "ReplacedParameters"),
        ("highest", "share", "score", "test_samples"),
        replaced,
    ),
    "spectrum": of_table(
        "Singular values of the classifier after the last round; in brackets the effective rank.",
        *("spectrum.csv", "ClassifierSpectrum", ("index", "value"), spectrum),
    ),
    "differences": Kind(
        "Difference from the mean over the settings.", differences, lambda run: False
    ),
    "numbers": of_table(
        "Numbers that the method reports about each client's model after the last round: their "
        "distribution over clients, and against training samples.",
        *("numbers.csv", "ModelNumbers", ("samples",), numbers),
    ),
}
