"""The losses of each sample, from which tasks make theirs; all run under ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_HALVES = (torch.bfloat16, torch.float16)


def cross_entropies(
    logits: Tensor,
    y: Tensor,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    focal: float = 0.0,
) -> Tensor:
    """Return the (B,) cross-entropies, as ``F.cross_entropy(reduction="none")`` does.

    ``torch.func.vmap`` computes that function in two dozen steps of Python, and in bfloat16 where
    it would be computed in float32 without vmap.

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
        # The power has no slope at zero, where the label is certain.
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
        outputs: (B, D Q) quantiles of D numbers, those of one number side by side.
        y: (B, D) numbers.
        quantiles: Q probabilities.
    """
    error = y[..., None] - outputs.reshape(*y.shape, len(quantiles))
    share = _constant(quantiles, outputs)
    return torch.maximum(share * error, (share - 1) * error)


def _constant(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def _as_autocast(logits: Tensor) -> Tensor:
    """Return logits in float32 where autocast computes losses in it, which vmap would leave out."""
    halves = torch.is_autocast_enabled(logits.device.type) and logits.dtype in _HALVES
    return logits.float() if halves else logits
