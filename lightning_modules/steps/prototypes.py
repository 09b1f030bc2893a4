"""Class means of features, and (C, D) tables of prototypes that are sent and merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_modules.losses.numerics import at_least_float32, full_precision, one_hot
from pfl import method as fl


def class_sums(
    z: Tensor, y: Tensor, num_classes: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum the features of each class, and count its samples.

    Sums and counts add up over batches; :func:`class_means` turns the totals into means. Runs under
    ``torch.func.vmap``.

    Args:
        z: (B, D) features.
        y: (B,) labels.
        num_classes: Number of classes, C.
        weight: (B,) one for a real sample and zero for padding, or ``None``.

    Returns:
        (C, D) sums and (C,) counts, at least in float32.

    Example:
        >>> z, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1, 0, 1])
        >>> sums, counts = class_sums(z, y, 3)
        >>> sums.tolist(), counts.tolist()
        ([[2.0], [5.0], [0.0]], [1.0, 2.0, 0.0])
    """
    with full_precision(z):
        z = at_least_float32(z)
        member = one_hot(y, num_classes, z)
        if weight is not None:
            member = member * weight.to(z.dtype)[:, None]
        return member.mT @ z, member.sum(0)


def sums_by_class(
    features: Callable[[Any], Tensor], num_classes: int
) -> Callable[[fl.Batch], fl.State]:
    """Return the statistic of a pass: (C, D) ``sums`` and (C,) ``counts`` of (B, D) features."""

    def statistic(batch: fl.Batch) -> fl.State:
        with torch.no_grad():
            z = features(batch.x)
        sums, counts = class_sums(z, batch.y, num_classes, batch.weight)
        return {"sums": sums, "counts": counts}

    return statistic


def means_pass(
    name: str, entry: str, features: Callable[[Any], Tensor], num_classes: int
) -> fl.Pass:
    """Return a pass that stores the (C, D) class means of (B, D) features as an entry."""

    def means(totals: fl.Totals) -> fl.State:
        return {entry: class_means(totals.sums["sums"], totals.sums["counts"])}

    return fl.Pass(name=name, statistic=sums_by_class(features, num_classes), then=means)


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """Return the (C, D) mean features; zero for a class without samples.

    Args:
        sums: (C, D) from :func:`class_sums`.
        counts: (C,) from :func:`class_sums`.

    Example:
        >>> class_means(torch.tensor([[4.0], [0.0]]), torch.tensor([2.0, 0.0])).tolist()
        [[2.0], [0.0]]
    """
    return sums / counts.clamp_min(1)[:, None]


def means_upload(means: Tensor, info: fl.ClientInfo) -> fl.Upload:
    """Return an upload that contains only one row for each of the client's classes.

    Args:
        means: (C, D) class means.
        info: The client.

    Returns:
        An upload with (C_i,) ``classes``, ascending, and their (C_i, D) ``means`` in ``extra``.
    """
    classes = info.class_counts.nonzero()[:, 0]
    extra = {"classes": classes.to(torch.int32), "means": means[classes.to(means.device)].clone()}
    return fl.Upload(client=info.client, samples=info.samples, shared={}, extra=extra)


def class_gaps(means: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Return the distance of each class's mean from the nearest mean of another class.

    Args:
        means: (n, D) means, several per class.
        classes: (n,) their classes; a class without means has no gap.
        num_classes: Number of classes, C.

    Returns:
        One gap for each class that has means, in order of class; infinite for a single class.

    Example:
        >>> class_gaps(torch.tensor([[0.0], [2.0], [4.0]]), torch.tensor([0, 0, 2]), 3)
        tensor([3., 3.])
    """
    sums, counts = class_sums(means, classes, num_classes)
    centres = class_means(sums, counts)[counts > 0]
    apart = (centres[:, None] - centres).square().sum(-1).sqrt()
    return apart.fill_diagonal_(torch.inf).amin(1)


def unknown_prototypes(num_classes: int, features: int) -> Tensor:
    """Return a (C, D) table in which no class has a prototype: all rows are NaN.

    The table itself thus marks classes without a prototype, and is sent as C D numbers.
    """
    return torch.full((num_classes, features), float("nan"))


def mask_unknown(prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the unknown rows of a table by zeros, and return a mask of the known ones.

    Args:
        prototypes: (C, D), with rows of NaN for unknown classes; see :func:`unknown_prototypes`.

    Returns:
        (C, D) values, and a (C,) mask with one for known rows and zero for unknown ones.

    Example:
        >>> values, present = mask_unknown(torch.tensor([[1.0, 2.0], [float("nan")] * 2]))
        >>> values.tolist(), present.tolist()
        ([[1.0, 2.0], [0.0, 0.0]], [1.0, 0.0])
    """
    return prototypes.nan_to_num(), (~prototypes[:, 0].isnan()).to(prototypes.dtype)


class ClassMeans(fl.Fold[Tensor]):
    """Prototypes averaged over clients, class by class; a class that no client has keeps its row.

    Sums are computed in float64 (float32 on devices without float64).

    Args:
        previous: (C, D), with rows of NaN for unknown classes.
        table: Returns an upload's (C, D) prototypes, and (C,) weights of its rows; rows of weight
            zero are ignored.

    Example:
        >>> sent = [([[1.0], [0.0]], [2.0, 0.0]), ([[4.0], [0.0]], [1.0, 0.0])]
        >>> found = ClassMeans(
        ...     torch.tensor([[9.0], [9.0]]), lambda upload: map(torch.tensor, sent[upload.client])
        ... )
        >>> for client in range(2):
        ...     found.add(fl.Upload(client, 1, {}))
        >>> found.value().tolist()
        [[2.0], [9.0]]
    """

    def __init__(self, previous: Tensor, table: Callable[[fl.Upload], Iterable[Tensor]]) -> None:
        self._previous, self._table = previous, table
        wide = fl.widest(previous.device)
        self._total = torch.zeros_like(previous, dtype=wide)
        self._mass = previous.new_zeros(len(previous)).to(wide)

    def add(self, upload: fl.Upload) -> None:
        """Add a client's prototypes."""
        table, count = self._table(upload)
        weight = count.to(self._mass)
        added = weight[:, None] * table.to(self._total.dtype)
        self._total += torch.where(weight[:, None] > 0, added, 0)
        self._mass += weight

    def value(self) -> Tensor:
        """Return the (C, D) prototypes."""
        means = (self._total / self._mass[:, None]).to(self._previous.dtype)
        return torch.where(self._mass[:, None] > 0, means, self._previous)
