"""A partition as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from datamodules.base import FederatedDataModule
from datamodules.checks import require
from datamodules.survey import Survey, count_hashes, survey
from datamodules.targets import Floats, Ints
from pfl.core.plain import spelled
from pfl.core.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Maximum number of clients that are listed, not only summarised.
LISTED_CLIENTS = 40
# Maximum number of rows with labels in the picture, and twice that of clients.
_NAMED = 40
# Maximum number of domains with colours in the picture.
_COLOURS = 8


def sheets(data: FederatedDataModule) -> list[Sheet]:
    """Return tables: the data as read, a summary and, for up to 40 clients, one row each."""
    seen = survey(data)
    pooled = data.pooled_test()
    rows = []
    for name, values in zip(("training", "validation", "test"), seen.sizes.T, strict=True):
        shown = [f"{number:,.5g}" for number in _summary(values)]
        rows.append([f"{name} samples", *shown, f"{values.sum():,}"])
    if seen.kind:
        shown = [f"{number:,.5g}" for number in _summary((seen.counts > 0).sum(1))]
        rows.append([seen.kind, *shown, f"{len(seen.rows)}"])
        what = f"{'target' if seen.kind == 'bins' else 'label'} skew (0 none, 1 most)"
        rows.append([what, *(f"{number:.2f}" for number in _summary(seen.skew)), ""])
    notes = ["no common test set" if pooled is None else f"common test set: {len(pooled):,}"]
    if data.contents.targets.has_classes:
        notes += [f"class counts, sha256 {name}: {h}" for name, h in count_hashes(data).items()]
    columns = ("a client's", "least", "median", "mean", "most", "total")
    about = Sheet(_title(data, seen.distinct), columns, rows, notes)
    listed = data.num_clients <= LISTED_CLIENTS
    read = replace(data.reading, clients=data.reading.clients if listed else None)
    clients = [_clients(seen, data.client_names, data.contents.domain_names)] if listed else []
    return [*read.sheets(), about, *clients]


def _summary(values: Ints | Floats) -> tuple[float, float, float, float]:
    return values.min(), float(np.median(values)), values.mean(), values.max()


def _clients(seen: Survey, names: Sequence[str], domains: Sequence[str]) -> Sheet:
    """Return the table with one row for each client."""
    rows = []
    for client, (sizes, counts, skew) in enumerate(
        zip(seen.sizes, seen.counts, seen.skew, strict=True)
    ):
        cells = [names[client] if names else str(client), *(f"{size:,}" for size in sizes)]
        if seen.kind:
            largest = int(counts.argmax())
            share = f"{seen.rows[largest]} {counts[largest] / max(1, counts.sum()):.0%}"
            cells += [str((counts > 0).sum()), f"{skew:.2f}", share if counts.any() else ""]
        if domains:
            present = np.flatnonzero(seen.domains[client])
            some = ", ".join(domains[d] for d in present[:3])
            cells.append(some + (f" and {len(present) - 3} more" if len(present) > 3 else ""))
        rows.append(cells)
    kinds = (seen.kind, "skew", "largest") if seen.kind else ()
    columns = ("client", "train", "val", "test", *kinds)
    return Sheet("", (*columns, "domains") if domains else columns, rows)


def figure(data: FederatedDataModule, path: str | Path) -> None:
    """Plot the partition to a PNG file: sizes above, clients x classes as bubbles below.

    The area of a bubble is the number of a client's training samples of one class (or subclass, if
    there are any), with one label, or in a range of the predicted number; masks have none. The
    colour is the client's main domain, if there are two to eight domains.

    Raises:
        ValueError: The file does not end in ``.png``.
    """
    from matplotlib.figure import Figure

    require(Path(path).suffix == ".png", f"{path}: the picture is a .png file")
    seen, names, domains = survey(data), data.client_names, data.contents.domain_names
    clients, rows = seen.counts.shape
    width = float(np.clip(2.5 + 0.32 * clients, 6.5, 20))
    height = float(np.clip(0.4 * rows, 2.5, 12))
    # Masks have sizes alone.
    picture = Figure(figsize=(width, height + 2.6 if rows else 3.6), layout="constrained")
    ratios = (1.6, height)[: 1 + (rows > 0)]
    plots = picture.subplots(len(ratios), sharex=True, height_ratios=ratios, squeeze=False)[:, 0]
    above, *others = plots
    bottom = np.zeros(clients)
    # Test samples that several clients share are not their own.
    shared = seen.sizes.sum() > seen.distinct
    parts = {"train": "0.3", "val": "0.5", "test": "0.8"}
    for (name, shade), sizes in zip(parts.items(), seen.sizes.T, strict=True):
        if sizes.any() and not (name == "test" and shared):
            above.bar(range(clients), sizes, 0.8, bottom, label=name, color=shade)
            bottom += sizes
    above.set_title(_title(data, seen.distinct), loc="left", fontsize=10)
    above.set_ylabel("samples")
    above.legend(loc="upper left", bbox_to_anchor=(1, 1))
    for below in others:
        _bubbles(picture, below, seen, domains, 72 * height / max(1, rows), width)
    lowest = plots[-1]
    lowest.set(xlim=(-0.7, clients - 0.3), xlabel="client")
    places = range(0, clients, max(1, 2 * clients // _NAMED))
    lowest.set_xticks(places, [names[one] for one in places] if names else None)
    lowest.tick_params("x", labelrotation=90 if names else 0)
    # Print quality, and at most 2,500 x 1,750 pixels.
    dpi = min(200.0, 2500 / picture.get_figwidth(), 1750 / picture.get_figheight())
    picture.savefig(Path(path), dpi=dpi, format="png")


def _bubbles(
    picture: Figure,
    below: Axes,
    seen: Survey,
    domains: Sequence[str],
    row_height: float,
    width: float,
) -> None:
    """Plot clients x classes as bubbles.

    Args:
        picture: The whole picture, which gets their legend.
        below: Its lower plot.
        seen: The numbers.
        domains: Names of the domains.
        row_height: Height of a row, in points.
        width: Width of the picture, in inches.
    """
    clients, rows = seen.counts.shape
    client, row = np.nonzero(seen.counts)
    counts = seen.counts[client, row]
    # In points; with many clients, bubbles may exceed their column, as neighbours are small.
    largest = min(72 * (0.35 if clients <= 30 else 3 * (width - 1.8) / clients), row_height)
    # A few very large counts would hide the rest; they all have the largest bubble.
    most = float(np.quantile(counts, 0.99)) if len(counts) else 1.0
    areas = np.maximum(2, largest**2 * np.minimum(1, counts / most))
    coloured = 1 < len(domains) <= _COLOURS
    colours = np.array([f"C{d}" for d in seen.domains.argmax(1)] if coloured else ["C0"] * clients)
    dots = below.scatter(client, row, areas, colours[client], alpha=0.75, linewidths=0)
    handles, labels = dots.legend_elements(
        "sizes", num=4, func=lambda area: np.asarray(area, float) * most / largest**2
    )
    picture.legend(handles, labels, title="samples", loc="outside lower right", ncols=4)
    for domain, name in enumerate(domains if coloured else ()):
        below.scatter([], [], color=f"C{domain}", label=name)
    if coloured:
        below.legend(loc="upper left", bbox_to_anchor=(1, 1), title="domain")
    below.set(ylim=(rows - 0.3, -0.7))
    below.set_ylabel({"classes": "class", "subclasses": "subclass"}.get(seen.kind, "target"))
    every = 1 + (rows - 1) // _NAMED
    below.set_yticks(range(0, rows, every), seen.rows[::every], fontsize=8)


def _title(data: FederatedDataModule, samples: int) -> str:
    """Return two lines: data set and size; partitioner."""
    about = f"{type(data).__name__}, {data.num_clients} clients, {samples:,} samples"
    return f"{about}\n{spelled(data.description()['partition'])}"
