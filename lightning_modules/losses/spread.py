"""Every loss term as a pure function of tensors.

Terms that reduce over a batch take ``weight``: (B,), one for a real sample and zero for padding, so
that a padded batch gives the number of the unpadded one. All of them run under ``torch.func.vmap``.
Terms that know classes by prototypes or embeddings are in ``prototypes``, terms that tie a model to
other models in ``anchors``.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_modules.losses.numerics import at_least_float32, full_precision, one_hot, unit
from pfl.checks import one_of, positive

EnergyForm: TypeAlias = Literal["inverse", "log", "chord", "rbf"]
Spread: TypeAlias = Literal["var", "std"]


def mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean over the samples that are real; 0 if none is.

    Args:
        values: (B,) one number a sample.
        weight: (B,) or ``None``.

    Example:
        >>> mean(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([1.0, 1.0, 0.0]))
        tensor(2.)
    """
    if weight is None:
        return values.mean()
    return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean cross-entropy.

    Args:
        logits: (B, C).
        y: (B,) labels.
        weight: (B,) or ``None``.

    Example:
        >>> cross_entropy(torch.zeros(3, 2), torch.tensor([0, 1, 1]))  # log 2
        tensor(0.6931)
    """
    if weight is None:
        return F.cross_entropy(logits, y)
    return mean(F.cross_entropy(logits, y, reduction="none"), weight)


def monte_carlo_cross_entropy(
    logits: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Cross-entropy averaged over draws of the weights: the mean over the samples, or their sum.

    ``1/K sum_k sum_i CE(logits[k, i], y[i])``, the expected negative log-likelihood of pFedVEM (Zhu
    et al., CVPR 2023), which sums over the data for the head and takes the mean for the base, and
    of pFedBayes (Zhang et al., ICML 2022, arXiv 2206.07977).

    Args:
        logits: (K, B, C), one set for each draw.
        y: (B,) labels.
        weight: (B,) or ``None``.
        reduction: Over the samples.

    Raises:
        ValueError: ``reduction`` is unknown.

    Example:
        >>> logits, y = torch.zeros(5, 3, 2), torch.tensor([0, 1, 1])
        >>> monte_carlo_cross_entropy(logits, y, reduction="sum")  # 3 log 2
        tensor(2.0794)
    """
    one_of("reduction", reduction, ("mean", "sum"))
    draws, _, _ = logits.shape
    values = F.cross_entropy(logits.flatten(0, 1), y.repeat(draws), reduction="none")
    values = values.reshape(draws, -1).mean(0)
    if reduction == "mean":
        return mean(values, weight)
    return values.sum() if weight is None else (values * weight).sum()


def feature_distillation(
    z: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: Literal["mean", "sum_dim"] = "mean",
) -> Tensor:
    """Squared distance of features from target features of the same samples.

    ``1/(B D) sum_jk (z_jk - target_jk)^2`` for ``mean`` (PFAKD's official code; FedAS's alignment
    with a target for each sample), D times that for ``sum_dim`` (PFAKD, Eq. 3 as it is written).

    Args:
        z: (B, D) features.
        target: (B, D) the teacher's features.
        weight: (B,) or ``None``.
        reduction: Mean over the features or their sum; always the mean over the samples.

    Raises:
        ValueError: ``reduction`` is unknown.

    Example:
        >>> z, target = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)
        >>> feature_distillation(z, target), feature_distillation(z, target, reduction="sum_dim")
        (tensor(2.5000), tensor(5.))
    """
    one_of("reduction", reduction, ("mean", "sum_dim"))
    squares = (at_least_float32(z) - target).square()
    return mean(squares.mean(-1) if reduction == "mean" else squares.sum(-1), weight)


def class_mean_alignment(
    z: Tensor, y: Tensor, class_means: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Squared distance of features from their class means: one mean a class, summed over classes.

    FedAS (CVPR 2024), official code: ``sum_c 1/(n_c D) sum_{j in c} ||z_j - p_c||^2`` with n_c the
    samples of class c in the batch. The paper's own form, Eqs. 2-4, aligns each sample with its own
    old feature: that is :func:`feature_distillation`.

    Args:
        z: (B, D) features.
        y: (B,) labels.
        class_means: (C, D) targets, for every class in the batch.
        weight: (B,) or ``None``.

    Example:
        >>> z, y = torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([0, 0, 1])
        >>> class_mean_alignment(z, y, torch.zeros(2, 1))  # (1 + 9) / 2 + 4
        tensor(9.)
    """
    squares = (at_least_float32(z) - class_means[y]).square().mean(-1)
    member = one_hot(y, len(class_means), squares)
    if weight is not None:
        member = member * weight.to(squares.dtype)[:, None]
    return ((member * squares[:, None]).sum(0) / member.sum(0).clamp_min(1)).sum()


def hyperspherical_energy(
    z: Tensor, weight: Tensor | None = None, form: EnergyForm = "inverse", eps: float = 1e-3
) -> Tensor:
    """How close the features of a batch lie to each other; low when they spread over the sphere.

    UniVarFL (arXiv 2506.08167), Eq. 3. With ``u = z / ||z||`` and ``s_ij = <u_i, u_j>`` the mean
    over pairs i != j of

    - ``inverse``: ``1 / (1 - s_ij + eps)``;
    - ``log``: ``-log(1 - s_ij + eps)``;
    - ``chord``: ``1 / (||u_i - u_j||^2 + eps)``;
    - ``rbf``: ``exp(-||z_i - z_j||^2 / m)``, features as they are, m the median of the non-zero
      squared distances, taken as a constant (public code of FedUV, CVPR 2024, where the gradient
      flows through m). Memory B^2 D.

    Fewer than two samples have no energy: 0. It is computed in float32 at least, whatever the
    precision around it.

    Args:
        z: (B, D) features.
        weight: (B,) or ``None``.
        form: Which energy.
        eps: Bounds the energy of coinciding features by 1 / eps.

    Raises:
        ValueError: ``form`` is unknown, or ``eps`` is not positive.

    Example:
        >>> hyperspherical_energy(torch.eye(4), eps=0.25)  # orthogonal features: 1 / (1 + eps)
        tensor(0.8000)
    """
    one_of("form", form, get_args(EnergyForm))
    positive(eps=eps)
    with full_precision(z):
        z = at_least_float32(z)
        real = z.new_ones(len(z)) if weight is None else weight.to(z.dtype)
        others = 1 - torch.eye(len(z), dtype=z.dtype, device=z.device)
        pairs = real[:, None] * real[None, :] * others
        energies = _pair_energies(z, pairs, form, eps)
        return (pairs * energies).sum() / pairs.sum().clamp_min(1)


def _pair_energies(z: Tensor, pairs: Tensor, form: EnergyForm, eps: float) -> Tensor:
    """(B, B) energies; finite, also in their gradient, where ``pairs`` is zero."""
    if form == "rbf":
        squares = (z[:, None] - z[None, :]).square().sum(-1)
        return torch.exp(-squares / _median_of_positive(squares.detach() * pairs))
    u = unit(z)
    # Rounding can lift the cosine of two equal features above one.
    gaps = torch.where(pairs > 0, (1 - u @ u.mT).clamp_min(0), 1.0)
    if form == "inverse":
        return 1 / (gaps + eps)
    if form == "log":
        return -torch.log(gaps + eps)
    return 1 / (2 * gaps + eps)


def _median_of_positive(values: Tensor) -> Tensor:
    """The lower median of the positive entries; 1 if there is none."""
    positive = values > 0
    ordered = torch.where(positive, values, math.inf).flatten().sort().values
    count = positive.sum()
    middle = ((count - 1) // 2).clamp_min(0)
    median = ordered.take_along_dim(middle[None], 0)[0]
    return torch.where(count > 0, median, 1.0)


def variance_floor(num_classes: int, statistic: Spread = "var", unbiased: bool = False) -> float:
    """Spread of a column of the identity: what perfect predictions of a balanced batch have.

    gamma of UniVarFL (arXiv 2506.08167), Eq. 2: ``(C - 1) / C^2``, or ``1 / C`` if unbiased; the
    root of that for ``std``.

    Args:
        num_classes: C.
        statistic: Variance or standard deviation.
        unbiased: Divide by C - 1 instead of C.

    Raises:
        ValueError: ``statistic`` is unknown.

    Example:
        >>> variance_floor(10), variance_floor(10, unbiased=True)
        (0.09, 0.1)
    """
    one_of("statistic", statistic, get_args(Spread))
    variance = 1 / num_classes if unbiased else (num_classes - 1) / num_classes**2
    return variance if statistic == "var" else math.sqrt(variance)


def classifier_variance(
    logits: Tensor, weight: Tensor | None = None, statistic: Spread = "var", unbiased: bool = False
) -> Tensor:
    """How far the spread of each class's probability over the batch falls short of its floor.

    UniVarFL (arXiv 2506.08167), Eqs. 1-2: ``1/C sum_c max(0, gamma - v_c)`` with ``v_c`` the
    variance over the batch of ``softmax(logits)[:, c]`` and gamma of :func:`variance_floor`. All C
    classes count, also those that are absent from the batch. ``statistic="std", unbiased=True`` is
    the form in the public code of FedUV (CVPR 2024). Fewer than two samples have no spread: 0.

    Args:
        logits: (B, C).
        weight: (B,) or ``None``.
        statistic: Variance, or standard deviation, as ``sqrt(v_c + 1e-8)`` whose gradient is
            finite.
        unbiased: Divide by B - 1 instead of B, and likewise in gamma.

    Raises:
        ValueError: ``statistic`` is unknown.

    Example:
        >>> classifier_variance(torch.zeros(8, 10))  # equal rows: gamma
        tensor(0.0900)
    """
    probs = at_least_float32(logits).softmax(-1)
    real = probs.new_ones(len(probs)) if weight is None else weight.to(probs.dtype)
    count = real.sum()
    centre = (real[:, None] * probs).sum(0) / count.clamp_min(1)
    squares = (real[:, None] * (probs - centre).square()).sum(0)
    spread = squares / (count - int(unbiased)).clamp_min(1)
    if statistic == "std":
        spread = (spread + 1e-8).sqrt()
    floor = variance_floor(logits.shape[-1], statistic, unbiased)
    return torch.where(count > 1, F.relu(floor - spread).mean(), 0.0)


def gaussian_kl(
    mean: Tensor, std: Tensor, prior_mean: Tensor | float, prior_std: Tensor | float
) -> Tensor:
    """KL divergence of one diagonal Gaussian from another, summed over all entries.

    ``sum log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2``, in a form that is exactly zero for
    equal Gaussians. pFedVEM (Zhu et al., CVPR 2023; there one ``prior_std`` for all entries) and
    pFedBayes (Zhang et al., ICML 2022, arXiv 2206.07977).

    Args:
        mean: (...) m1.
        std: (...) s1, positive.
        prior_mean: (...) or a number, m2.
        prior_std: (...) or a number, s2, positive.

    Example:
        >>> gaussian_kl(torch.ones(3), torch.ones(3), 0.0, 1.0)  # 3 * 1/2
        tensor(1.5000)
    """
    ratio = (std / prior_std).square()
    distance = ((mean - prior_mean) / prior_std).square()
    return 0.5 * (ratio - 1 - ratio.log() + distance).sum()
