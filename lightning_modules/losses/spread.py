"""Loss terms that spread the features or predictions of a batch: UniVarFL's two regularisers."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_modules.losses.numerics import at_least_float32, full_precision, unit
from pfl.method import one_of, positive

EnergyForm: TypeAlias = Literal["inverse", "log", "chord", "rbf"]
SpreadStatistic: TypeAlias = Literal["var", "std"]


def hyperspherical_energy(
    z: Tensor, weight: Tensor | None = None, form: EnergyForm = "inverse", eps: float = 1e-3
) -> Tensor:
    """Compute the hyperspherical energy of features, which is low if they spread over the sphere.

    UniVarFL (arXiv 2506.08167), Eq. 3. With ``u = z / ||z||`` and ``s_ij = <u_i, u_j>``, it is the
    mean over pairs i != j of

    - ``inverse``: ``1 / (1 - s_ij + eps)``;
    - ``log``: ``-log(1 - s_ij + eps)``;
    - ``chord``: ``1 / (||u_i - u_j||^2 + eps)``;
    - ``rbf``: ``exp(-||z_i - z_j||^2 / m)`` of unnormalised features, where m is the median of the
      non-zero squared distances, treated as a constant (public code of FedUV, CVPR 2024, where the
      gradient flows through m). It needs memory of size B^2 D.

    The energy of fewer than two samples is 0. It is computed at least in float32, also under
    autocast.

    Args:
        z: (B, D) features.
        weight: (B,) or ``None``.
        form: Form of the energy, see above.
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
    """Return (B, B) energies; values and gradients are finite where ``pairs`` is zero."""
    if form == "rbf":
        squares = (z[:, None] - z[None, :]).square().sum(-1)
        return torch.exp(-squares / _median_of_positive(squares.detach() * pairs))
    u = unit(z)
    # Rounding can raise the cosine of two equal features above one.
    gaps = torch.where(pairs > 0, (1 - u @ u.mT).clamp_min(0), 1.0)
    if form == "inverse":
        return 1 / (gaps + eps)
    if form == "log":
        return -torch.log(gaps + eps)
    return 1 / (2 * gaps + eps)


def _median_of_positive(values: Tensor) -> Tensor:
    """Return the lower median of the positive entries, or 1 if there are none."""
    positive = values > 0
    ordered = torch.where(positive, values, math.inf).flatten().sort().values
    count = positive.sum()
    middle = ((count - 1) // 2).clamp_min(0)
    median = ordered.take_along_dim(middle[None], 0)[0]
    return torch.where(count > 0, median, 1.0)


def variance_floor(
    num_classes: int, statistic: SpreadStatistic = "var", unbiased: bool = False
) -> float:
    """Compute the spread of each class's probability in perfect, balanced predictions.

    gamma of UniVarFL (arXiv 2506.08167), Eq. 2: ``(C - 1) / C^2``, or ``1 / C`` if unbiased, and
    the square root of these for ``std``.

    Args:
        num_classes: Number of classes, C.
        statistic: Variance or standard deviation.
        unbiased: Divide by C - 1 instead of C.

    Raises:
        ValueError: ``statistic`` is unknown.

    Example:
        >>> variance_floor(10), variance_floor(10, unbiased=True)
        (0.09, 0.1)
    """
    one_of("statistic", statistic, get_args(SpreadStatistic))
    variance = 1 / num_classes if unbiased else (num_classes - 1) / num_classes**2
    return variance if statistic == "var" else math.sqrt(variance)


def classifier_variance(
    logits: Tensor,
    weight: Tensor | None = None,
    statistic: SpreadStatistic = "var",
    unbiased: bool = False,
) -> Tensor:
    """Compute how far the spread of each class's probability over a batch falls below its floor.

    UniVarFL (arXiv 2506.08167), Eqs. 1-2: ``1/C sum_c max(0, gamma - v_c)``, where ``v_c`` is the
    variance over the batch of ``softmax(logits)[:, c]`` and gamma is that of
    :func:`variance_floor`. All C classes count, also those absent from the batch.
    ``statistic="std", unbiased=True`` is the form in the public code of FedUV (CVPR 2024). The loss
    of fewer than two samples is 0.

    Args:
        logits: (B, C).
        weight: (B,) or ``None``.
        statistic: Variance, or standard deviation, computed as ``sqrt(v_c + 1e-8)`` to have a
            finite gradient.
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
