"""Loss terms that fit predictions to labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from lightning_modules.losses.numerics import mean
from pfl.method import cross_entropies, mean_cross_entropy, one_of


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the mean cross-entropy.

    Args:
        logits: (B, C).
        y: (B,) labels.
        weight: (B,) or ``None``.

    Example:
        >>> import torch
        >>> cross_entropy(torch.zeros(3, 2), torch.tensor([0, 1, 1]))  # log 2
        tensor(0.6931)
    """
    if weight is None:
        return mean_cross_entropy(logits, y)
    return mean(cross_entropies(logits, y), weight)


def monte_carlo_cross_entropy(
    logits: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    losses: Callable[[Tensor, Tensor], Tensor] = cross_entropies,
) -> Tensor:
    """Compute the cross-entropy averaged over draws of the weights.

    ``1/K sum_k sum_i CE(logits[k, i], y[i])``, the expected negative log-likelihood of pFedVEM (Zhu
    et al., CVPR 2023), which takes the sum over the data for the head and the mean for the base,
    and of pFedBayes (Zhang et al., ICML 2022, arXiv 2206.07977).

    Args:
        logits: (K, B, C), one set of logits for each draw.
        y: (B,) labels.
        weight: (B,) or ``None``.
        reduction: Mean or sum over the samples.
        losses: Function that computes the (B,) losses, such as a task's.

    Raises:
        ValueError: ``reduction`` is unknown.

    Example:
        >>> import torch
        >>> logits, y = torch.zeros(5, 3, 2), torch.tensor([0, 1, 1])
        >>> monte_carlo_cross_entropy(logits, y, reduction="sum")  # 3 log 2
        tensor(2.0794)
    """
    one_of("reduction", reduction, ("mean", "sum"))
    draws, _, _ = logits.shape
    values = losses(logits.flatten(0, 1), y.repeat(draws))
    values = values.reshape(draws, -1).mean(0)
    if reduction == "mean":
        return mean(values, weight)
    return values.sum() if weight is None else (values * weight).sum()
