"""Counts of each client's samples in a data module."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from datamodules.base import FederatedDataModule
from datamodules.partition.splits import Division
from datamodules.targets import Ints
from pfl.core.task import MultiLabel
from pfl.core.types import Split

# Number of histogram bins of a predicted number.
_BINS = 12


@dataclass(frozen=True, eq=False)
class Survey:
    """The numbers for the table and the picture of a partition.

    Attributes:
        sizes: (N, 3) training, validation and test samples of each client.
        distinct: Number of distinct samples in use.
        kind: Kind of the rows: ``subclasses``, or ``classes`` if there are none; ``labels``; or
            ``bins`` of the (first) number to predict. Empty for masks, which have no rows.
        counts: (N, R) training samples of each row.
        rows: (R,) names of the rows; subclasses of one class are neighbours.
        skew: (N,) total variation distances of clients' class (or label or bin) proportions from
            the overall ones, in [0, 1].
        domains: (N, D) training samples of each domain; D is 0 without domains.
    """

    sizes: Ints
    distinct: int
    kind: str
    counts: Ints
    rows: tuple[str, ...]
    skew: NDArray[np.float64]
    domains: Ints


def count_hashes(data: FederatedDataModule) -> dict[str, str]:
    """Return hashes of the clients' sample counts by class, for each split and for all.

    Divisions of the same images in different orders share it, unlike the hash of a partition.

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
    """Count the samples of every client of a data module."""
    contents, targets = data.contents, data.contents.targets

    def count(values: Ints | None, names: int) -> Ints:
        held = [] if values is None else [values[h.train] for h in data.division.holdings]
        counts = [np.bincount(own, minlength=names) for own in held]
        return np.stack(counts) if counts else np.zeros((data.num_clients, 0), np.int64)

    if targets.has_classes:
        kind, names = "classes", [*contents.class_names]
        counts = classes = count(targets.labels, len(names))
    else:
        kind, names, classes = _predicted(data)
        counts = classes
    if targets.fine is not None:
        kind, fine = "subclasses", count(targets.fine, len(contents.fine_names))
        parents = dict(zip(targets.fine.tolist(), targets.labels.tolist(), strict=True))
        order = sorted(range(len(contents.fine_names)), key=lambda row: parents.get(row, 0))
        counts, names = fine[:, order], [contents.fine_names[row] for row in order]
    shares = classes / np.maximum(1, classes.sum(1, keepdims=True))
    everybody = classes.sum(0) / max(1, classes.sum())
    return Survey(
        sizes=data.division.sizes,
        distinct=len(Division(data.division.holdings, None).samples()),
        kind=kind,
        counts=counts,
        rows=tuple(names),
        skew=np.abs(shares - everybody).sum(1) / 2,
        domains=count(targets.domains, len(contents.domain_names)),
    )


def _predicted(data: FederatedDataModule) -> tuple[str, list[str], Ints]:
    """Return kind, names and (N, R) training samples of labels, or of bins of a number."""
    y = [data.split(client, "train").targets.numpy() for client in range(data.num_clients)]
    if y[0].ndim > 2:
        return "", [], np.zeros((len(y), 0), np.int64)
    if isinstance(data.task, MultiLabel):
        counts = np.stack([values.sum(0) for values in y]).astype(np.int64)
        return "labels", [f"label {label}" for label in range(counts.shape[1])], counts
    numbers = [values[:, 0] for values in y]
    edges = np.histogram_bin_edges(np.concatenate(numbers), _BINS)
    names = [f"{a:.4g} to {b:.4g}" for a, b in pairwise(edges)]
    return "bins", names, np.stack([np.histogram(values, edges)[0] for values in numbers])
