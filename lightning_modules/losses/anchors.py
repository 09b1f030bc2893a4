"""Loss terms that tie a model to other models: to their weights, features or predictions.

As in all of ``losses``, ``weight``: (B,) is one for a real sample and zero for padding, and all
functions run under ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_modules.losses.numerics import at_least_float32, full_precision, mean, unit
from pfl.method import one_of

Widths: TypeAlias = Literal["fixed", "batch"]


def proximal(parameters: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """Compute half the squared distance of parameters from their anchors.

    ``1/2 sum ||w - w_0||^2``, to be multiplied by the method's strength. Used by FedProx (Li et
    al., MLSys 2020, arXiv 1812.06127), Ditto (Li et al., ICML 2021, arXiv 2012.04221) and pFedMe
    (Dinh et al., NeurIPS 2020, arXiv 2006.08848).

    Args:
        parameters: At least one tensor.
        anchors: One tensor for each parameter, of the same shape.

    Example:
        >>> proximal([torch.tensor([3.0, 4.0])], [torch.zeros(2)])
        tensor(12.5000)
    """
    pairs = zip(parameters, anchors, strict=True)
    return 0.5 * torch.stack([(value - anchor).square().sum() for value, anchor in pairs]).sum()


def linear(parameters: Iterable[Tensor], slopes: Iterable[Tensor]) -> Tensor:
    """Compute the inner product of parameters with constants, which become its gradient.

    ``sum <c, w>``. SCAFFOLD (Karimireddy et al., ICML 2020, arXiv 1910.06378) adds ``c - c_i`` to
    every gradient in this way.

    Args:
        parameters: At least one tensor.
        slopes: One constant for each parameter, of the same shape.

    Example:
        >>> linear([torch.tensor([3.0, 4.0])], [torch.tensor([1.0, -1.0])])
        tensor(-1.)
    """
    pairs = zip(parameters, slopes, strict=True)
    return torch.stack([(slope * value).sum() for value, slope in pairs]).sum()


def feature_distillation(
    z: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: Literal["mean", "sum_dim"] = "mean",
) -> Tensor:
    """Compute the squared distance of features from target features of the same samples.

    ``1/(B D) sum_jk (z_jk - target_jk)^2`` for ``mean`` (PFAKD's official code; FedAS's alignment
    with a target for each sample), and D times that for ``sum_dim`` (PFAKD, Eq. 3 as printed).

    Args:
        z: (B, D) features, or (B, D, ...) of each pixel.
        target: (B, D) features of the teacher, likewise.
        weight: (B,) or ``None``.
        reduction: Mean or sum over the features; the samples are always averaged.

    Raises:
        ValueError: ``reduction`` is unknown.

    Example:
        >>> z, target = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)
        >>> feature_distillation(z, target), feature_distillation(z, target, reduction="sum_dim")
        (tensor(2.5000), tensor(5.))
    """
    one_of("reduction", reduction, ("mean", "sum_dim"))
    squares = (at_least_float32(z) - target).square().flatten(1)
    return mean(squares.mean(-1) if reduction == "mean" else squares.sum(-1), weight)


def kernel_discrepancy(
    z: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    widths: Widths = "fixed",
) -> Tensor:
    """Compute the maximum mean discrepancy of two batches of features under a sum of kernels.

    The mean over all pairs (a, b) of ``K(z_a, z_b) + K(t_a, t_b) - 2 K(z_a, t_b)``, where ``K(x, y)
    = sum_s exp(-||x - y||^2 / (2 s))``. A pair with padding does not count.

    Args:
        z: (B, D) features.
        target: (B, D) constant features, t.
        weight: (B,) or ``None``.
        widths: ``fixed`` is s in {10, 15, 20, 50}, as in FedCP (Zhang et al., KDD 2023, arXiv
            2307.01217); with ``batch``, 2 s is 1/4, 1/2, 1, 2 and 4 times the mean squared
            distance of two of the 2 B vectors, as in FedPHP (Li et al., ECML PKDD 2021).

    Example:
        >>> z, target = torch.zeros(1, 1), torch.tensor([[20.0]]).sqrt()
        >>> kernel_discrepancy(z, target)  # 8 - 2 (e^-1 + e^-2/3 + e^-1/2 + e^-1/5)
        tensor(3.3869)
    """
    with full_precision(z):
        z, target = at_least_float32(z), at_least_float32(target)
        pairs = None if weight is None else torch.outer(weight, weight)
        apart = _squares(z, z), _squares(target, target), _squares(z, target)
        if widths == "fixed":
            scales = 2 * torch.tensor([10.0, 15.0, 20.0, 50.0]).to(z)
        else:
            scales = _spread(apart, pairs) * torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0]).to(z)
        own, other, between = (torch.exp(-one[..., None] / scales).sum(-1) for one in apart)
        values = own + other - 2 * between
        return mean(values.flatten(), None if pairs is None else pairs.flatten())


def _squares(x: Tensor, y: Tensor) -> Tensor:
    """Return the (B, B) squared distances, at least 0."""
    return (x.square().sum(-1)[:, None] + y.square().sum(-1) - 2 * x @ y.mT).clamp_min(0)


def _spread(apart: tuple[Tensor, Tensor, Tensor], pairs: Tensor | None) -> Tensor:
    """Return the mean squared distance of two different vectors of both batches, as a constant."""
    own, other, between = (one.detach() if pairs is None else one.detach() * pairs for one in apart)
    total = own.sum() + other.sum() + 2 * between.sum()
    # The squared number of real vectors; there are two for each sample.
    squared = 4 * (torch.tensor(float(own.numel())).to(own) if pairs is None else pairs.sum())
    return total / (squared - squared.sqrt()).clamp_min(1) + 1e-8


def model_contrastive(
    z: Tensor,
    z_global: Tensor,
    z_previous: Tensor,
    weight: Tensor | None = None,
    temperature: float = 0.5,
) -> Tensor:
    """Contrast features with those of the global model and of the client's previous model.

    MOON (Li et al., CVPR 2021, arXiv 2103.16257): the mean over the batch of ``-log(e^(g/tau) /
    (e^(g/tau) + e^(p/tau)))`` with the cosines g = cos(z, z_global) and p = cos(z, z_previous).

    Args:
        z: (B, D) features of the local model.
        z_global: (B, D) features of the received model.
        z_previous: (B, D) features of the client's model after its last participation.
        weight: (B,) or ``None``.
        temperature: tau.

    Example:
        >>> z = torch.tensor([[1.0, 2.0]])
        >>> model_contrastive(z, torch.ones(1, 2), torch.ones(1, 2))  # log 2
        tensor(0.6931)
    """
    u, toward, away = (unit(at_least_float32(v)) for v in (z, z_global, z_previous))
    # p - g in one product, so that value and gradient are exact where both models agree.
    return mean(F.softplus((u * (away - toward)).sum(-1) / temperature), weight)


def symmetric_kl(logits: Tensor, others: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute half the sum of the KL divergences between two predictions, in both directions.

    The mean over the batch of ``1/2 sum_c (p_c - q_c) (log p_c - log q_c)``. CD2-pFed (Shen et al.,
    CVPR 2022, arXiv 2204.03880).

    Args:
        logits: (B, C).
        others: (B, C) logits of the other network.
        weight: (B,) or ``None``.

    Example:
        >>> one, other = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0986]])  # p_2 = 3/4
        >>> symmetric_kl(one, other)  # 1/2 (1/4 log 2 - 1/4 log 2/3) = log(3) / 8
        tensor(0.1373)
    """
    p, q = at_least_float32(logits).log_softmax(-1), at_least_float32(others).log_softmax(-1)
    return mean(0.5 * ((p.exp() - q.exp()) * (p - q)).sum(-1), weight)


def kl_divergence(logits: Tensor, teacher: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the KL divergence of a prediction from its teacher's, ``KL(teacher || logits)``.

    The mean over the batch of ``sum_c p_c (log p_c - log q_c)``, where p is the teacher's
    prediction. FML (Shen et al., 2020, arXiv 2006.16765).

    Args:
        logits: (B, C).
        teacher: (B, C) logits of the other network; gradients reach it unless it is detached.
        weight: (B,) or ``None``.

    Example:
        >>> one, other = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0986, 0.0]])  # p_1 = 3/4
        >>> kl_divergence(one, other)  # 3/4 log 3/2 + 1/4 log 1/2
        tensor(0.1308)
    """
    q, p = at_least_float32(logits).log_softmax(-1), at_least_float32(teacher).log_softmax(-1)
    return mean((p.exp() * (p - q)).sum(-1), weight)


def soft_cross_entropy(logits: Tensor, teacher: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the cross-entropy with a teacher's prediction: the mean of ``-sum_c p_c log q_c``.

    FedPHP (Li et al., ECML PKDD 2021).

    Args:
        logits: (B, C).
        teacher: (B, C) logits of the teacher, divided by its temperature.
        weight: (B,) or ``None``.

    Example:
        >>> soft_cross_entropy(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]))  # log 2
        tensor(0.6931)
    """
    p, q = at_least_float32(teacher).softmax(-1), at_least_float32(logits).log_softmax(-1)
    return mean(-(p * q).sum(-1), weight)
