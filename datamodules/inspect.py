"""A partition as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datamodules.base import FederatedDataModule
from datamodules.checks import require
from datamodules.survey import Survey, count_hashes, survey
from datamodules.targets import Floats, Ints
from pfl.core.plain import spelled
from pfl.core.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# With more clients than this, they are summarised, not listed.
LISTED_CLIENTS = 40
# With more rows than this, not all are named in the picture.
LABELLED_ROWS = 40
# Okabe and Ito's colours, which colour-blind people can tell apart; not used for more domains.
_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#D55E00", "#56B4E9", "#8C6D31", "#555555"),
)


def sheets(data: FederatedDataModule) -> list[Sheet]:
    """Return tables: what was read, a summary and, up to 40 clients, one with a row for each."""
    seen = survey(data)
    pooled = data.pooled_test()
    rows = []
    names = ("training samples", "validation samples", "test samples", seen.kind)
    for name, values in zip(names, (*seen.sizes.T, (seen.counts > 0).sum(1)), strict=True):
        total = f"{len(seen.rows)}" if name == seen.kind else f"{values.sum():,}"
        rows.append([name, *(f"{number:,.5g}" for number in _summary(values)), total])
    what = f"{'target' if seen.kind == 'bins' else 'label'} skew (0 none, 1 most)"
    rows.append([what, *(f"{number:.2f}" for number in _summary(seen.skew())), ""])
    notes = ["no common test set" if pooled is None else f"common test set: {len(pooled):,}"]
    if data.contents.targets.has_classes:
        notes += [f"class counts, sha256 {name}: {h}" for name, h in count_hashes(data).items()]
    columns = ("a client's", "least", "median", "mean", "most", "total")
    about = Sheet(_title(data, seen.distinct), columns, rows, notes)
    listed = data.num_clients <= LISTED_CLIENTS
    read = replace(data.reading, clients=data.reading.clients if listed else None)
    clients = [_clients(seen, data.client_names)] if listed else []
    return [*read.sheets(), about, *clients]


def _summary(values: Ints | Floats) -> tuple[float, float, float, float]:
    return values.min(), float(np.median(values)), values.mean(), values.max()


def _clients(seen: Survey, names: Sequence[str]) -> Sheet:
    """Return the table with one row for each client."""
    rows = []
    for client, (sizes, counts, skew) in enumerate(
        zip(seen.sizes, seen.counts, seen.skew(), strict=True)
    ):
        largest = int(counts.argmax())
        share = f"{seen.rows[largest]} {counts[largest] / max(1, counts.sum()):.0%}"
        cells = [
            names[client] if names else str(client),
            *(f"{size:,}" for size in sizes),
            str((counts > 0).sum()),
        ]
        cells += [f"{skew:.2f}", share if counts.any() else ""]
        if seen.domain_names:
            present = np.flatnonzero(seen.domains[client])
            some = ", ".join(seen.domain_names[d] for d in present[:3])
            cells.append(some + (f" and {len(present) - 3} more" if len(present) > 3 else ""))
        rows.append(cells)
    domains = ["domains"] if seen.domain_names else []
    columns = ("client", "train", "val", "test", seen.kind, "skew", "largest", *domains)
    return Sheet("", columns, rows)


def figure(data: FederatedDataModule, path: str | Path) -> None:
    """Draw the partition into a PNG file: sizes above, clients x classes as bubbles below.

    The area of a bubble is the number of a client's training samples of one class (or subclass, if
    there are any), or with one label. If a number is predicted, each client has a histogram
    instead, whose longest bar fills its column. The colour is the client's main domain, if there
    are two to eight domains.

    Raises:
        ValueError: The file does not end in ``.png``.
    """
    from matplotlib.figure import Figure

    require(Path(path).suffix == ".png", f"{path}: the picture is a .png file")

    seen = survey(data)
    clients, rows = seen.counts.shape
    width = float(np.clip(2.5 + 0.32 * clients, 6.5, 20))
    height = float(np.clip(0.4 * rows, 2.5, 12))
    picture = Figure(figsize=(width, height + 2.6), layout="constrained")
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=(1.6, height))
    _draw_sizes(above, seen)
    _draw_clients(below, seen, data.client_names)
    if seen.kind == "bins":
        _draw_histograms(below, seen)
    else:
        # With many clients, bubbles may be wider than their column: most neighbours are small.
        room = min(3 * (width - 1.8) / clients, height / rows) if clients > 30 else 0.35
        _draw_bubbles(picture, below, seen, 72 * min(room, height / rows))
    above.set_title(_title(data, seen.distinct), loc="left", fontsize=10)
    # Fit for print, and at most 2,500 x 1,750 pixels.
    dpi = min(200.0, 2500 / picture.get_figwidth(), 1750 / picture.get_figheight())
    picture.savefig(Path(path), dpi=dpi, format="png")


def _title(data: FederatedDataModule, samples: int) -> str:
    """Return two lines: data set and size; partitioner."""
    about = f"{type(data).__name__}, {data.num_clients} clients, {samples:,} samples"
    return f"{about}\n{spelled(data.description()['partition'])}"


def _draw_sizes(axes: Axes, seen: Survey) -> None:
    """Draw stacked bars of training, validation and, unless they overlap, test samples."""
    parts = [("train", "#444444"), ("val", "#888888"), ("test", "#C4C4C4")]
    bottom = np.zeros(len(seen.sizes))
    for (name, shade), sizes in zip(parts, seen.sizes.T, strict=True):
        if sizes.any() and not (name == "test" and seen.tests_overlap):
            axes.bar(np.arange(len(sizes)), sizes, 0.8, bottom, label=name, color=shade)
            bottom += sizes
    axes.set_ylabel("samples")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(bottom=False)


def _draw_bubbles(figure: Figure, axes: Axes, seen: Survey, largest: float) -> None:
    """Draw a bubble for each client and row, up to ``largest`` points wide, and a size legend."""
    client, row = np.nonzero(seen.counts)
    counts = seen.counts[client, row]
    # A few very large counts would hide the rest; they all get the largest bubble.
    reference = float(np.quantile(counts, 0.99)) if len(counts) else 1.0
    areas, colours = _areas(counts, reference, largest), _colours(axes, seen)[client]
    axes.scatter(client, row, areas, colours, alpha=0.75, linewidths=0)
    axes.set_ylim(len(seen.rows) - 0.3, -0.7)
    _label_rows(axes, seen)
    # A legend of three round numbers, up to about the reference.
    numbers = sorted({max(1, int(float(f"{share * reference:.1g}"))) for share in (0.1, 0.4, 1)})
    sizes = _areas(np.array(numbers), reference, largest)
    keys = [axes.scatter([], [], size, "#777777", linewidths=0) for size in sizes]
    labels = [*(f"{number:,}" for number in numbers[:-1]), f"{numbers[-1]:,} samples"]
    figure.legend(keys, labels, loc="outside lower right", ncols=len(keys), frameon=False)


def _areas(counts: Ints, reference: float, largest: float) -> Floats:
    """Return areas in squared points; the smallest bubble is a visible dot."""
    areas: Floats = largest**2 * np.minimum(counts / reference, 1)
    return np.maximum(areas, 2)


def _draw_histograms(axes: Axes, seen: Survey) -> None:
    """Draw a histogram of the predicted number for each client, with bars from left to right."""
    lengths = 0.9 * seen.counts / np.maximum(1, seen.counts.max(1, keepdims=True))
    middles, heights = (seen.edges[1:] + seen.edges[:-1]) / 2, np.diff(seen.edges)
    for client, colour in enumerate(_colours(axes, seen)):
        axes.barh(middles, lengths[client], 0.92 * heights, client - 0.45, color=colour, alpha=0.75)
    axes.set_ylim(seen.edges[0], seen.edges[-1])
    axes.set_ylabel("target")


def _colours(axes: Axes, seen: Survey) -> NDArray[np.str_]:
    """Return the (N,) colours of the clients by main domain, and add the legend of the domains."""
    main = np.zeros(len(seen.counts), np.int64)
    if 1 < len(seen.domain_names) <= len(_COLOURS):
        main = seen.domains.argmax(1)
        for domain, name in enumerate(seen.domain_names):
            axes.scatter([], [], color=_COLOURS[domain], label=name)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, title="domain")
    return np.array(_COLOURS)[main]


def _draw_clients(axes: Axes, seen: Survey, names: Sequence[str]) -> None:
    """Draw the axis of the clients."""
    axes.set_xlim(-0.7, len(seen.counts) - 0.3)
    axes.set_xlabel("client")
    places = range(0, len(seen.counts), max(1, len(seen.counts) // 20))
    axes.set_xticks(places, [names[client] for client in places] if names else None)
    if names:
        axes.tick_params("x", labelrotation=90)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#EEEEEE", linewidth=0.5)
    axes.set_axisbelow(True)


def _label_rows(axes: Axes, seen: Survey) -> None:
    """Label the rows; if there are many, only every k-th row, or the class of subclasses."""
    rows = len(seen.rows)
    if rows <= LABELLED_ROWS or rows == len(seen.class_names):
        every = 1 + (rows - 1) // LABELLED_ROWS
        axes.set_yticks(np.arange(0, rows, every), seen.rows[::every], fontsize=8)
        axes.set_ylabel({"classes": "class", "subclasses": "subclass"}.get(seen.kind, "label"))
        return
    first = np.flatnonzero(np.diff(seen.parents, prepend=-1))
    middle = (first + np.append(first[1:], rows) - 1) / 2
    axes.set_yticks(middle, [seen.class_names[seen.parents[row]] for row in first], fontsize=8)
    axes.set_ylabel("class")
    axes.grid(visible=False, axis="y")
    for border in first[1:]:
        axes.axhline(border - 0.5, color="#CCCCCC", linewidth=0.6)
