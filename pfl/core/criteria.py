"""Losses of samples and scores of models, from which tasks are built.

Losses run under ``torch.func.vmap``. Scores are computed from sums by model and group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15

# (n,) values and (n,) groups -> (K, groups) sums, by model and group.
GroupSums: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
_HALVES = (torch.bfloat16, torch.float16)


def cross_entropies(
    logits: Tensor,
    y: Tensor,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    focal: float = 0.0,
) -> Tensor:
    """Return the (B,) cross-entropies, as ``F.cross_entropy(reduction="none")`` does.

    Under ``torch.func.vmap`` that function takes two dozen steps of Python, and uses bfloat16 where
    it uses float32 without vmap.

    Args:
        logits: (B, C).
        y: (B,) labels.
        class_weights: (C,) factor of each class.
        label_smoothing: The share of a label that is spread evenly over all classes.
        focal: gamma of the focal loss; 0 for the cross-entropy.
    """
    logs = _as_autocast(logits).log_softmax(-1)
    values = -logs.gather(-1, y[:, None]).squeeze(-1)
    if focal:
        # The power has no derivative at zero, where the label is certain.
        doubt = (-torch.expm1(-values)).clamp_min(torch.finfo(values.dtype).eps)
        values = values * doubt.pow(focal)
    factors = None if class_weights is None else _constant(class_weights, logs)
    if factors is not None:
        values = values * factors[y]
    if label_smoothing:
        spread = -(logs if factors is None else logs * factors).mean(-1)
        values = (1 - label_smoothing) * values + label_smoothing * spread
    return values


def mean_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy, as ``F.cross_entropy`` does, and as exactly under vmap.

    Args:
        logits: (B, C).
        y: (B,) labels.
    """
    # Not the mean of cross_entropies, which is rounded differently.
    return F.cross_entropy(_as_autocast(logits), y)


def pinball(outputs: Tensor, y: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Return (B, D, Q) pinball losses: q e above a quantile q, (q - 1) e below it, for e = y - q.

    Args:
        outputs: (B, D Q) quantiles of D numbers; the Q of a number are adjacent.
        y: (B, D) numbers.
        quantiles: Q probabilities.
    """
    error = y[..., None] - outputs.reshape(*y.shape, len(quantiles))
    share = _constant(quantiles, outputs)
    return torch.maximum(share * error, (share - 1) * error)


def _constant(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def _as_autocast(logits: Tensor) -> Tensor:
    """Return logits in float32 where autocast would compute losses in it; vmap does not."""
    halves = torch.is_autocast_enabled(logits.device.type) and logits.dtype in _HALVES
    return logits.float() if halves else logits


def wide(values: Tensor) -> Tensor:
    """Return values in single precision or, if they are float64, unchanged."""
    return values if values.dtype == torch.float64 else values.float()


def exact(values: Tensor) -> Tensor:
    """Return values in double precision on the CPU, as some devices lack it."""
    return values.detach().cpu().double()


def defined(scores: Tensor, loss: Tensor) -> Tensor:
    """Return scores, or NaN for all of them where the loss is NaN, as some output then is."""
    return torch.where(loss.isnan(), loss, scores)


def macro_f1(hits: Tensor, held: Tensor) -> Tensor:
    """Return (K,) mean F1 scores of the classes that are present or predicted.

    Args:
        hits: (K, C) numbers of correctly predicted samples of each model and class.
        held: (K, C) numbers of samples of the class plus samples predicted to be of it.
    """
    present = (held > 0).to(hits.dtype)
    f1 = (2 * hits / held).nan_to_num()
    return (f1 / present.sum(1, keepdim=True)).sum(1)


def calibration_error(tally: GroupSums, confidence: Tensor, right: Tensor) -> Tensor:
    """Return (K,) expected calibration errors: mean gap between accuracy and confidence in bins.

    Args:
        tally: Sums values by model and bin.
        confidence: (n,) largest probabilities.
        right: (n,) 1 if the most probable class is the label, else 0.
    """
    edges = torch.linspace(0, 1, BINS + 1, dtype=confidence.dtype, device=confidence.device)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    accuracy, sureness, count = (
        tally(values, bins, BINS + 1) for values in (right, confidence, torch.ones_like(right))
    )
    gap = (accuracy / count).nan_to_num() - (sureness / count).nan_to_num()
    return (gap.abs() * (count / count.sum(1, keepdim=True))).sum(1)


def group_sums(owner: Tensor, models: int, values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (models, count) sums of (n,) values by model and group."""
    sums = values.new_zeros(models * count)
    return sums.scatter_add_(0, owner * count + groups, values).view(models, count)
