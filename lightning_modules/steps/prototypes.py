"""Class statistics of features, and loss terms that know a class by one vector.

``weight``: (B,) is one for a real sample and zero for padding, and all functions run under
``torch.func.vmap``, as in ``losses``. Class means, prototypes and embeddings are tables (C, D).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_modules.losses import cross_entropy, mean
from lightning_modules.losses.numerics import at_least_float32, full_precision, one_hot, unit
from pfl.checks import one_of


def class_sums(
    z: Tensor, y: Tensor, num_classes: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum of the features of each class, and number of its samples.

    Both add up over batches; :func:`class_means` turns the totals into means.

    Args:
        z: (B, D) features.
        y: (B,) labels.
        num_classes: C.
        weight: (B,) or ``None``.

    Returns:
        (C, D) sums and (C,) counts, in float32 at least.

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


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """(C, D) mean features; zero for a class without samples.

    Args:
        sums: (C, D) of :func:`class_sums`.
        counts: (C,) of :func:`class_sums`.

    Example:
        >>> class_means(torch.tensor([[4.0], [0.0]]), torch.tensor([2.0, 0.0])).tolist()
        [[2.0], [0.0]]
    """
    return sums / counts.clamp_min(1)[:, None]


def unknown_prototypes(num_classes: int, features: int) -> Tensor:
    """(C, D) table of prototypes before any is known: a row of NaN says that a class has none.

    So a table tells by itself which classes it knows, and travels as C D numbers.
    """
    return torch.full((num_classes, features), float("nan"))


def known(prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """A table with zeros for unknown rows, and which rows are known.

    Args:
        prototypes: (C, D) with rows of NaN, see :func:`unknown_prototypes`.

    Returns:
        (C, D) values and (C,) ones and zeros.

    Example:
        >>> values, present = known(torch.tensor([[1.0, 2.0], [float("nan")] * 2]))
        >>> values.tolist(), present.tolist()
        ([[1.0, 2.0], [0.0, 0.0]], [1.0, 0.0])
    """
    return prototypes.nan_to_num(), (~prototypes[:, 0].isnan()).to(prototypes.dtype)


def merge_prototypes(
    previous: Tensor, prototypes: Sequence[Tensor], counts: Sequence[Tensor]
) -> Tensor:
    """Weighted mean over clients, class by class; a class that no client holds keeps its old row.

    Sums run in float64 (float32 on devices that have no float64), in the order given.

    Args:
        previous: (C, D) with rows of NaN for unknown classes.
        prototypes: (C, D) of each client; the rows of weight zero are not looked at.
        counts: (C,) weights of each client's rows, zero for a class that it does not hold.

    Example:
        >>> tables = [torch.tensor([[1.0], [0.0]]), torch.tensor([[4.0], [0.0]])]
        >>> counts = [torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])]
        >>> merge_prototypes(torch.tensor([[9.0], [9.0]]), tables, counts).tolist()
        [[2.0], [9.0]]
    """
    wide = torch.float32 if previous.device.type == "mps" else torch.float64
    total, mass = torch.zeros_like(previous, dtype=wide), previous.new_zeros(len(previous)).to(wide)
    for table, count in zip(prototypes, counts, strict=True):
        weight = count.to(mass)
        total += torch.where(weight[:, None] > 0, weight[:, None] * table.to(wide), 0)
        mass += weight
    means = (total / mass[:, None]).to(previous.dtype)
    return torch.where(mass[:, None] > 0, means, previous)


def prototype_mse(
    z: Tensor, y: Tensor, prototypes: Tensor, present: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Squared distance of features from the prototypes of their classes, where there are any.

    ``1/(B D) sum_j present[y_j] ||z_j - c_{y_j}||^2``: a sample whose class has no prototype adds
    nothing and stays in the denominator. FedProto (Tan et al., AAAI 2022, arXiv 2105.00243, as
    coded) and FedPAC (Xu et al., ICLR 2023, arXiv 2306.11867).

    Args:
        z: (B, D) features.
        y: (B,) labels.
        prototypes: (C, D).
        present: (C,) whether the class has a prototype, as 0 or 1.
        weight: (B,) or ``None``.

    Example:
        >>> z, y, c = torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]), torch.zeros(2, 1)
        >>> prototype_mse(z, y, c, present=torch.tensor([0.0, 1.0]))  # 9 / 2
        tensor(4.5000)
    """
    squares = (at_least_float32(z) - prototypes[y]).square().mean(-1)
    return mean(squares * present[y], weight)


def angular(z: Tensor, y: Tensor, embeddings: Tensor, weight: Tensor | None = None) -> Tensor:
    """Cross-entropy whose logits are the cosines between features and class embeddings.

    GPFL (Zhang et al., ICCV 2023, arXiv 2308.10279), its angle-level guidance; no temperature, so
    it lies between ``log(1 + (C - 1) e^-2)`` and ``log(1 + (C - 1) e^2)``.

    Args:
        z: (B, D) features of the generic route.
        y: (B,) labels.
        embeddings: (C, D), trained.
        weight: (B,) or ``None``.

    Example:
        >>> angular(torch.ones(1, 2), torch.tensor([0]), torch.tensor([[5.0, 5.0], [-1.0, -1.0]]))
        tensor(0.1269)
    """
    with full_precision(z):
        z, embeddings = at_least_float32(z), at_least_float32(embeddings)
        return cross_entropy(unit(z) @ unit(embeddings).mT, y, weight)


def magnitude(
    z: Tensor,
    y: Tensor,
    embeddings: Tensor,
    weight: Tensor | None = None,
    reduction: Literal["batch_norm", "sample_mean"] = "batch_norm",
) -> Tensor:
    """Distance of features from the received embeddings of their classes.

    GPFL (Zhang et al., ICCV 2023, arXiv 2308.10279), its magnitude-level guidance. 1e-12 stands
    inside the root, so that the gradient is finite at distance zero (not in the official code).

    Args:
        z: (B, D) features of the generic route.
        y: (B,) labels.
        embeddings: (C, D), constant.
        weight: (B,) or ``None``.
        reduction: ``batch_norm`` is the norm of all differences of the batch at once (official
            code; grows with the root of B), ``sample_mean`` the mean distance (paper).

    Raises:
        ValueError: ``reduction`` is unknown.

    Example:
        >>> z, y, table = torch.tensor([[3.0], [4.0]]), torch.tensor([0, 0]), torch.zeros(1, 1)
        >>> magnitude(z, y, table), magnitude(z, y, table, reduction="sample_mean")
        (tensor(5.), tensor(3.5000))
    """
    one_of("reduction", reduction, ("batch_norm", "sample_mean"))
    squares = (at_least_float32(z) - embeddings[y]).square().sum(-1)
    if reduction == "sample_mean":
        return mean((squares + 1e-12).sqrt(), weight)
    total = squares.sum() if weight is None else (squares * weight).sum()
    return (total + 1e-12).sqrt()
