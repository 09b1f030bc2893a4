"""A partition as a table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table

from datamodules.base import FederatedDataModule
from datamodules.splits import Division
from datamodules.targets import Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More clients than this are summarised, not listed.
LISTED_CLIENTS = 40
# More rows than this are not all named in the picture.
LABELLED_ROWS = 40
# Okabe and Ito's colours, which the colour-blind can tell apart; more domains get none.
_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#D55E00", "#56B4E9", "#8C6D31", "#555555"),
)


@dataclass(frozen=True, eq=False)
class Survey:
    """The numbers behind the table and the picture.

    Attributes:
        sizes: (N, 3) training, validation and test samples of each client.
        distinct: Number of different samples in use.
        counts: (N, R) training samples of each row: subclass, or class where there is none.
        rows: (R,) names of the rows; subclasses of one class are neighbours.
        parents: (R,) class of each row.
        classes: (N, C) training samples of each class.
        class_names: (C,).
        domains: (N, D) training samples of each domain; D is 0 without domains.
        domain_names: (D,).
    """

    sizes: Ints
    distinct: int
    counts: Ints
    rows: tuple[str, ...]
    parents: Ints
    classes: Ints
    class_names: tuple[str, ...]
    domains: Ints
    domain_names: tuple[str, ...]

    @property
    def tests_overlap(self) -> bool:
        """``True`` if a test sample belongs to several clients."""
        return bool(self.sizes.sum() > self.distinct)

    def skew(self) -> NDArray[np.float64]:
        """(N,) total variation between a client's class proportions and everybody's, in [0, 1]."""
        own = self.classes / np.maximum(1, self.classes.sum(1, keepdims=True))
        everybody = self.classes.sum(0) / max(1, self.classes.sum())
        distance: NDArray[np.float64] = np.abs(own - everybody).sum(1) / 2
        return distance


def survey(data: FederatedDataModule) -> Survey:
    """Count what every client of a data module holds."""
    contents, holdings = data.contents, data.division.holdings
    targets = contents.targets

    def count(values: Ints | None, names: int) -> Ints:
        if values is None:
            return np.zeros((len(holdings), 0), np.int64)
        return np.stack([np.bincount(values[h.train], minlength=names) for h in holdings])

    classes = count(targets.labels, len(contents.class_names))
    order = parents = np.arange(len(contents.class_names))
    counts, names = classes, contents.class_names
    if targets.fine is not None:
        parents = np.zeros(len(contents.fine_names), np.int64)
        parents[targets.fine] = targets.labels
        order = np.argsort(parents, kind="stable")
        counts, names = count(targets.fine, len(contents.fine_names)), contents.fine_names
    return Survey(
        sizes=data.division.sizes,
        distinct=len(Division(data.division.holdings, None).samples()),
        counts=counts[:, order],
        rows=tuple(names[row] for row in order.tolist()),
        parents=parents[order],
        classes=classes,
        class_names=tuple(contents.class_names),
        domains=count(targets.domains, len(contents.domain_names)),
        domain_names=tuple(contents.domain_names),
    )


def table(data: FederatedDataModule) -> Group:
    """Build tables for a terminal: a summary, and one row a client up to 40 clients."""
    seen = survey(data)
    pooled = data.pooled_test()
    about = Table(title=_title(data, seen.distinct), title_justify="left")
    about.add_column("a client's")
    for name in ("least", "median", "mean", "most", "total"):
        about.add_column(name, justify="right")
    held = (seen.counts > 0).sum(1)
    kinds = "classes" if len(seen.rows) == len(seen.class_names) else "subclasses"
    rows = zip(
        ("training samples", "validation samples", "test samples"), seen.sizes.T, strict=True
    )
    for name, values in (*rows, (kinds, held)):
        total = f"{len(seen.rows)}" if name == kinds else f"{values.sum():,}"
        numbers = (values.min(), np.median(values), values.mean(), values.max())
        about.add_row(name, *(f"{number:,.5g}" for number in numbers), total)
    skew = seen.skew()
    numbers = (skew.min(), np.median(skew), skew.mean(), skew.max())
    about.add_row("label skew (0 none, 1 most)", *(f"{number:.2f}" for number in numbers), "")
    about.caption = "no common test set" if pooled is None else f"common test set: {len(pooled):,}"
    if data.num_clients > LISTED_CLIENTS:
        return Group(about)
    return Group(about, _clients(seen, kinds))


def _clients(seen: Survey, kinds: str) -> Table:
    """Build the table with one row a client."""
    listed = Table()
    for name in ("client", "train", "val", "test", kinds, "skew"):
        listed.add_column(name, justify="right")
    listed.add_column("largest")
    if seen.domain_names:
        listed.add_column("domains")
    for client, (sizes, counts, skew) in enumerate(
        zip(seen.sizes, seen.counts, seen.skew(), strict=True)
    ):
        largest = int(counts.argmax())
        share = f"{seen.rows[largest]} {counts[largest] / max(1, counts.sum()):.0%}"
        cells = [str(client), *(f"{size:,}" for size in sizes), str((counts > 0).sum())]
        cells += [f"{skew:.2f}", share if counts.any() else ""]
        if seen.domain_names:
            present = np.flatnonzero(seen.domains[client])
            some = ", ".join(seen.domain_names[d] for d in present[:3])
            cells.append(some + (f" and {len(present) - 3} more" if len(present) > 3 else ""))
        listed.add_row(*cells)
    return listed


def figure(data: FederatedDataModule, path: str | Path) -> None:
    """Draw the partition into a PNG file: sizes above, clients x classes as bubbles below.

    A bubble's area is the number of a client's training samples of one class (subclass, where there
    are any). Its colour is the client's main domain, where there are two to eight.
    """
    from matplotlib.figure import Figure

    seen = survey(data)
    clients, rows = seen.counts.shape
    width = float(np.clip(2.5 + 0.32 * clients, 6.5, 20))
    height = float(np.clip(0.4 * rows, 2.5, 12))
    picture = Figure(figsize=(width, height + 2.6), layout="constrained")
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=(1.6, height))
    _draw_sizes(above, seen)
    # Where clients are many, bubbles may be wider than their column: most neighbours are small.
    room = min(3 * (width - 1.8) / clients, height / rows) if clients > 30 else 0.35
    _draw_bubbles(picture, below, seen, 72 * min(room, height / rows))
    above.set_title(_title(data, seen.distinct), loc="left", fontsize=10)
    picture.savefig(Path(path), dpi=110, format="png")


def _title(data: FederatedDataModule, samples: int) -> str:
    """Return two lines: data set and size; partitioner."""
    about = f"{type(data).__name__}, {data.num_clients} clients, {samples:,} samples"
    return f"{about}\n{_spelled(data.description()['partition'])}"


def _spelled(recipe: object) -> str:
    """Write a recipe as a Python call."""
    if not isinstance(recipe, dict):
        return str(recipe)
    given = recipe["init_args"].items()
    arguments = [f"{key}={_spelled(value)}" for key, value in given if value is not None]
    return f"{recipe['class_path'].rpartition('.')[2]}({', '.join(arguments)})"


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
    """Draw a bubble for each client and row, up to ``largest`` points wide, and a key of sizes."""
    client, row = np.nonzero(seen.counts)
    counts = seen.counts[client, row]
    # A few giants would make everything else invisible; they share the largest bubble.
    reference = float(np.quantile(counts, 0.99)) if len(counts) else 1.0
    main = np.zeros(len(seen.counts), np.int64)
    if 1 < len(seen.domain_names) <= len(_COLOURS):
        main = seen.domains.argmax(1)
        for domain, name in enumerate(seen.domain_names):
            axes.scatter([], [], color=_COLOURS[domain], label=name)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, title="domain")
    colours = [_COLOURS[domain] for domain in main[client]]
    areas = _areas(counts, reference, largest)
    axes.scatter(client, row, areas, colours, alpha=0.75, linewidths=0)
    axes.set_xlim(-0.7, len(seen.counts) - 0.3)
    axes.set_ylim(len(seen.rows) - 0.3, -0.7)
    axes.set_xlabel("client")
    axes.set_xticks(np.arange(0, len(seen.counts), max(1, len(seen.counts) // 20)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#EEEEEE", linewidth=0.5)
    axes.set_axisbelow(True)
    _label_rows(axes, seen)
    # A key of three round numbers, up to about the reference.
    numbers = sorted({max(1, int(float(f"{share * reference:.1g}"))) for share in (0.1, 0.4, 1)})
    sizes = _areas(np.array(numbers), reference, largest)
    keys = [axes.scatter([], [], size, "#777777", linewidths=0) for size in sizes]
    labels = [*(f"{number:,}" for number in numbers[:-1]), f"{numbers[-1]:,} samples"]
    figure.legend(keys, labels, loc="outside lower right", ncols=len(keys), frameon=False)


def _areas(counts: Ints, reference: float, largest: float) -> NDArray[np.float64]:
    """Return areas in squared points; no bubble is smaller than a dot that can be seen."""
    areas: NDArray[np.float64] = largest**2 * np.minimum(counts / reference, 1)
    return np.maximum(areas, 2)


def _label_rows(axes: Axes, seen: Survey) -> None:
    """Label the rows; where they are many, every k-th row, or each class of subclasses."""
    rows = len(seen.rows)
    if rows <= LABELLED_ROWS or rows == len(seen.class_names):
        every = 1 + (rows - 1) // LABELLED_ROWS
        axes.set_yticks(np.arange(0, rows, every), seen.rows[::every], fontsize=8)
        return
    first = np.flatnonzero(np.diff(seen.parents, prepend=-1))
    middle = (first + np.append(first[1:], rows) - 1) / 2
    axes.set_yticks(middle, [seen.class_names[seen.parents[row]] for row in first], fontsize=8)
    axes.grid(visible=False, axis="y")
    for border in first[1:]:
        axes.axhline(border - 0.5, color="#CCCCCC", linewidth=0.6)
