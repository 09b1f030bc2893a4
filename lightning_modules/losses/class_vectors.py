"""Loss terms that represent each class by a row of a (C, D) table: mean, prototype or embedding."""

from __future__ import annotations

from torch import Tensor

from lightning_modules.losses.classification import cross_entropy
from lightning_modules.losses.numerics import at_least_float32, full_precision, mean, one_hot, unit


def class_mean_alignment(
    z: Tensor, y: Tensor, class_means: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Compute the squared distance of features from their class means, summed over classes.

    FedAS (CVPR 2024), official code: ``sum_c 1/(n_c D) sum_{j in c} ||z_j - p_c||^2``, where n_c is
    the number of samples of class c in the batch. The form in the paper (Eqs. 2-4) aligns each
    sample with its own old feature; see :func:`feature_distillation`.

    Args:
        z: (B, D) features.
        y: (B,) labels.
        class_means: (C, D) targets, for every class in the batch.
        weight: (B,) or ``None``.

    Example:
        >>> import torch
        >>> z, y = torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([0, 0, 1])
        >>> class_mean_alignment(z, y, torch.zeros(2, 1))  # (1 + 9) / 2 + 4
        tensor(9.)
    """
    squares = (at_least_float32(z) - class_means[y]).square().mean(-1)
    member = one_hot(y, len(class_means), squares)
    if weight is not None:
        member = member * weight.to(squares.dtype)[:, None]
    return ((member * squares[:, None]).sum(0) / member.sum(0).clamp_min(1)).sum()


def prototype_mse(
    z: Tensor, y: Tensor, prototypes: Tensor, present: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Compute the squared distance of features from the prototypes of their classes.

    ``1/(B D) sum_j present[y_j] ||z_j - c_{y_j}||^2``: a sample whose class has no prototype adds
    nothing, but counts in the denominator. FedProto (Tan et al., AAAI 2022, arXiv 2105.00243, as in
    its code) and FedPAC (Xu et al., ICLR 2023, arXiv 2306.11867).

    Args:
        z: (B, D) features.
        y: (B,) labels.
        prototypes: (C, D).
        present: (C,), one if the class has a prototype, otherwise zero.
        weight: (B,) or ``None``.

    Example:
        >>> import torch
        >>> z, y, c = torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]), torch.zeros(2, 1)
        >>> prototype_mse(z, y, c, present=torch.tensor([0.0, 1.0]))  # 9 / 2
        tensor(4.5000)
    """
    squares = (at_least_float32(z) - prototypes[y]).square().mean(-1)
    return mean(squares * present[y], weight)


def prototype_contrast(
    z: Tensor, y: Tensor, prototypes: Tensor, margin: float, weight: Tensor | None = None
) -> Tensor:
    """Compute the cross-entropy of negative distances from all prototypes, with a margin.

    The logits are the negative Euclidean distances; the margin is added to the distance from the
    sample's own class. FedTGP (Zhang et al., AAAI 2024, arXiv 2401.03230). Squared distances are at
    least 1e-12, so that the gradient is finite.

    Args:
        z: (B, D) features.
        y: (B,) labels.
        prototypes: (C, D).
        margin: Added to the distance from the prototype of the sample's class.
        weight: (B,) or ``None``.

    Example:
        >>> import torch
        >>> z, y = torch.tensor([[0.0]]), torch.tensor([0])
        >>> prototype_contrast(z, y, torch.tensor([[1.0], [3.0]]), margin=2.0)  # log 2
        tensor(0.6931)
    """
    squares = (at_least_float32(z)[:, None] - prototypes).square().sum(-1)
    distances = squares.clamp_min(1e-12).sqrt()
    own = one_hot(y, len(prototypes), distances)
    return cross_entropy(-(distances + margin * own), y, weight)


def angular(z: Tensor, y: Tensor, embeddings: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the cross-entropy of the cosines between features and class embeddings.

    The angle-level guidance of GPFL (Zhang et al., ICCV 2023, arXiv 2308.10279). There is no
    temperature, so the value lies between ``log(1 + (C - 1) e^-2)`` and ``log(1 + (C - 1) e^2)``.

    Args:
        z: (B, D) features of the generic route.
        y: (B,) labels.
        embeddings: (C, D), trainable.
        weight: (B,) or ``None``.

    Example:
        >>> import torch
        >>> angular(torch.ones(1, 2), torch.tensor([0]), torch.tensor([[5.0, 5.0], [-1.0, -1.0]]))
        tensor(0.1269)
    """
    with full_precision(z):
        z, embeddings = at_least_float32(z), at_least_float32(embeddings)
        return cross_entropy(unit(z) @ unit(embeddings).mT, y, weight)


def magnitude(z: Tensor, y: Tensor, embeddings: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the distance of features from the received embeddings of their classes.

    The magnitude-level guidance of GPFL (Zhang et al., ICCV 2023, arXiv 2308.10279): the norm of
    all differences in the batch at once, as in the official code; it grows with the square root of
    B. 1e-12 is added under the root, so that the gradient is finite at distance zero (not in the
    official code).

    Args:
        z: (B, D) features of the generic route.
        y: (B,) labels.
        embeddings: (C, D), constant.
        weight: (B,) or ``None``.

    Example:
        >>> import torch
        >>> magnitude(torch.tensor([[3.0], [4.0]]), torch.tensor([0, 0]), torch.zeros(1, 1))
        tensor(5.)
    """
    squares = (at_least_float32(z) - embeddings[y]).square().sum(-1)
    total = squares.sum() if weight is None else (squares * weight).sum()
    return (total + 1e-12).sqrt()
