"""Pictures of matrices: values that the server reports for each client, similarity of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from pfl.results.files import Floats, RunError
from pfl.results.runs import RunFolder
from pfl.results.settings import Setting
from pfl.results.style import HEAT, WIDTH, page_width, wrapped

# Values that span more than this ratio get a logarithmic scale of colours.
_LOGARITHMIC = 50
# As many names fit beside a matrix, and as many unrotated numbers below it.
_LABELLED, _LEVEL = 30, 15


def reported(settings: Sequence[Setting], column: str) -> Figure:
    """Draw a value that the server reported for each client in each evaluated round, as a map.

    Clients are sorted by their training samples, the largest at the top; the map is empty where a
    client did not take part, and lacks those that were never tested. Only the first of several
    seeds is drawn.

    One map is drawn for each setting whose server reported the value, a column of ``clients.csv``;
    see :attr:`~pfl.results.runs.RunFolder.reported`.

    Raises:
        RunError: No run reported the value.
    """
    runs = [(s.label, s.runs[0]) for s in settings if column in s.runs[0].reported]
    maps = {label: run.over_rounds(column, run.evaluated()) for label, run in runs}
    maps = {label: values for label, values in maps.items() if values.notna().any(axis=None)}
    if not maps:
        raise RunError(f"no run reported {column!r} for its clients")
    page = page_width()
    columns = min(len(maps), 4 if page == WIDTH else 1)
    rows = -(-len(maps) // columns)
    width = min(page, WIDTH * max(0.55, columns / 4))
    figure = Figure(figsize=(width, 0.5 + 2.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    norm = _norm(list(maps.values()))
    for panel, (label, run) in zip(grid.flat, [r for r in runs if r[0] in maps], strict=False):
        _map(panel, run, maps[label], norm)
        panel.set_title(wrapped(label, 1.4))
    for panel in grid.flat[len(maps) :]:
        panel.set_axis_off()
    for panel in grid[:, 0]:
        panel.set_ylabel("clients, by training samples")
    for panel in grid.flat[: len(maps)][-columns:]:  # the lowest of each column
        panel.set_xlabel("round")
    image, caption = grid[0, 0].collections[0], runs[0][1].reported[column]
    figure.colorbar(image, ax=grid, label=caption, shrink=0.9, aspect=30 * rows)
    return figure


def _map(panel: Axes, run: RunFolder, values: pd.DataFrame, norm: Normalize) -> None:
    samples = run.samples.dropna().sort_values(kind="stable")
    rounds = run.evaluated()
    edges = np.append(rounds, rounds[-1] + (rounds[-1] - rounds[-2] if len(rounds) > 1 else 1))
    panel.pcolormesh(
        edges - 0.5,
        np.arange(len(samples) + 1),
        np.ma.masked_invalid(values[samples.index].T),
        cmap=HEAT,
        norm=norm,
        rasterized=True,
    )
    panel.grid(visible=False)
    panel.set_facecolor("#F2F2F2")
    panel.set_yticks([0.5, len(samples) - 0.5], [f"{samples.iloc[i]:,.0f}" for i in (0, -1)])
    panel.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))


def _norm(values: Sequence[pd.DataFrame]) -> Normalize:
    """Return a common colour scale for all maps."""
    together = np.concatenate([one_map.to_numpy().ravel() for one_map in values])
    together = together[np.isfinite(together)]
    low, high = float(together.min()), float(together.max())
    if low > 0 and high > _LOGARITHMIC * low:
        return LogNorm(low, high)
    if 0 < low < high / 2 or low == high:
        low = min(low, 0)
    return Normalize(low, high if high > low else 1)


def similarity(settings: Sequence[Setting]) -> Figure:
    """Draw the cosine similarities between the clients' label proportions.

    Clients are sorted by a hierarchical clustering. The first run's partition is drawn.

    Raises:
        RunError: The run has no label counts.
    """
    run = settings[0].runs[0]
    counts = run.label_counts
    if counts is None:
        raise RunError(f"the partition of {run.path} has no label counts")
    matrix = label_similarity(counts)
    order = _clustered(matrix)
    width = min(page_width(), 0.55 * WIDTH)
    figure = Figure(figsize=(width, 0.85 * width), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(matrix[np.ix_(order, order)], cmap=HEAT, vmin=0, vmax=1)
    name_clients(panel, run, order, order)
    panel.set_xlabel("clients, like labels together")
    panel.set_ylabel("clients")
    figure.colorbar(image, ax=panel, label="similarity of labels (cosine)")
    return figure


def name_clients(panel: Axes, run: RunFolder, rows: NDArray[Any], columns: NDArray[Any]) -> None:
    """Name the clients beside the rows and columns of a matrix: all, or some of many."""
    panel.grid(visible=False)
    panel.tick_params(length=0, labelsize=6)
    for axis, clients, turn in ((panel.xaxis, columns, 90), (panel.yaxis, rows, 0)):
        places = range(0, len(clients), -(-len(clients) // _LABELLED))
        labels = [run.client_names[int(clients[place])] for place in places]
        # Names are long, and more numbers would touch each other.
        turned = run.partition.get("names") or len(places) > _LEVEL
        axis.set_ticks(places, labels, rotation=turn if turned else 0)


def label_similarity(counts: Floats) -> Floats:
    """Return (N, N) cosine similarities of (N, C) label counts; 0 for a client without data."""
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    directions = counts / np.where(lengths, lengths, 1)
    similar: Floats = np.clip(directions @ directions.T, 0, 1)
    return similar


def _clustered(matrix: Floats) -> NDArray[np.intp]:
    """Return (N,) clients in an order that places similar ones together."""
    if len(matrix) < 3:
        return np.arange(len(matrix))
    distances = squareform(1 - matrix, checks=False)
    tree = linkage(distances, "average")
    # The optimal order of the leaves takes long for many clients.
    tree = optimal_leaf_ordering(tree, distances) if len(matrix) <= 500 else tree
    return leaves_list(tree).astype(np.intp)
