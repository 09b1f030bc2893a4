"""Counts of what each client of a data module holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from datamodules.base import FederatedDataModule
from datamodules.partition.splits import Division
from datamodules.targets import Floats, Ints
from pfl.core.task import MultiLabel
from pfl.core.types import Split

# Number of bins in the histogram of a predicted number.
_BINS = 12
_NONE: Floats = np.empty(0)


@dataclass(frozen=True, eq=False)
class Survey:
    """The numbers behind the table and the picture of a partition.

    Attributes:
        sizes: (N, 3) training, validation and test samples of each client.
        distinct: Number of different samples in use.
        kind: Kind of the rows: ``subclasses``, or ``classes`` if there are none; ``labels``; or
            ``bins`` of the number to predict (of the first, if there are several).
        counts: (N, R) training samples of each row.
        rows: (R,) names of the rows; subclasses of one class are neighbours.
        parents: (R,) class of each row.
        classes: (N, C) training samples of each class.
        class_names: (C,) names of the classes.
        domains: (N, D) training samples of each domain; D is 0 without domains.
        domain_names: (D,) names of the domains.
        edges: (R + 1,) edges of the bins; empty for other kinds of rows.
    """

    sizes: Ints
    distinct: int
    kind: str
    counts: Ints
    rows: tuple[str, ...]
    parents: Ints
    classes: Ints
    class_names: tuple[str, ...]
    domains: Ints
    domain_names: tuple[str, ...]
    edges: Floats

    @property
    def tests_overlap(self) -> bool:
        """``True`` if a test sample belongs to several clients."""
        return bool(self.sizes.sum() > self.distinct)

    def skew(self) -> NDArray[np.float64]:
        """(N,) total variation distances of clients' proportions from everybody's, in [0, 1].

        The proportions are those of classes, or of labels or bins if there are no classes.
        """
        shares = self.classes / np.maximum(1, self.classes.sum(1, keepdims=True))
        everybody = self.classes.sum(0) / max(1, self.classes.sum())
        distance: NDArray[np.float64] = np.abs(shares - everybody).sum(1) / 2
        return distance


def count_hashes(data: FederatedDataModule) -> dict[str, str]:
    """Return a hash of how many samples each client has of each class, for each split and for all.

    Two divisions of the same images in different orders share it, unlike the hash of a partition.

    Returns:
        The first 16 hexadecimal digits of the SHA-256 of (N, C) little-endian int64 numbers (C
        subclasses, if there are any), by split; splits without samples are left out.
    """
    labels, holdings = data.contents.targets.finest, data.division.holdings
    width = 1 + int(labels.max(initial=0))

    def counted(name: Split) -> Ints:
        return np.stack([np.bincount(labels[h.of(name)], minlength=width) for h in holdings])

    tables = {"train": counted("train"), "val": counted("val"), "test": counted("test")}
    tables = {name: counts for name, counts in tables.items() if counts.any()}
    tables["all"] = np.sum([*tables.values()], axis=0)
    return {
        name: hashlib.sha256(counts.astype("<i8").tobytes()).hexdigest()[:16]
        for name, counts in tables.items()
    }


def survey(data: FederatedDataModule) -> Survey:
    """Count what every client of a data module holds."""
    contents, holdings = data.contents, data.division.holdings
    targets = contents.targets

    def count(values: Ints | None, names: int) -> Ints:
        if values is None:
            return np.zeros((len(holdings), 0), np.int64)
        return np.stack([np.bincount(values[h.train], minlength=names) for h in holdings])

    kind, edges = "classes", _NONE
    classes, names = count(targets.labels, len(contents.class_names)), contents.class_names
    if not targets.has_classes:
        kind, classes, edges = _predicted(data)
        names = [f"{a:.4g} to {b:.4g}" for a, b in pairwise(edges)]
        names = names or [f"label {label}" for label in range(classes.shape[1])]
    order = parents = np.arange(len(names))
    counts, rows = classes, names
    if targets.fine is not None:
        kind = "subclasses"
        parents = np.zeros(len(contents.fine_names), np.int64)
        parents[targets.fine] = targets.labels
        order = np.argsort(parents, kind="stable")
        counts, rows = count(targets.fine, len(contents.fine_names)), contents.fine_names
    return Survey(
        sizes=data.division.sizes,
        distinct=len(Division(data.division.holdings, None).samples()),
        kind=kind,
        counts=counts[:, order],
        rows=tuple(rows[row] for row in order.tolist()),
        parents=parents[order],
        classes=classes,
        class_names=tuple(names),
        domains=count(targets.domains, len(contents.domain_names)),
        domain_names=tuple(contents.domain_names),
        edges=edges,
    )


def _predicted(data: FederatedDataModule) -> tuple[str, Ints, Floats]:
    """Count what replaces classes: labels, or bins of a number.

    Returns:
        kind: Kind of the rows.
        counts: (N, R) training samples.
        edges: (R + 1,) edges of the bins; empty for labels.
    """
    y = [data.split(client, "train").targets.numpy() for client in range(data.num_clients)]
    if isinstance(data.task, MultiLabel):
        return "labels", np.stack([values.sum(0) for values in y]).astype(np.int64), _NONE
    numbers = [values[:, 0] for values in y]
    edges = np.histogram_bin_edges(np.concatenate(numbers), _BINS)
    return "bins", np.stack([np.histogram(values, edges)[0] for values in numbers]), edges
