"""Every loss term as a pure function of tensors.

Terms that reduce over a batch take ``weight``: (B,), one for a real sample and zero for padding, so
that a padded batch gives the number of the unpadded one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean over the samples that are real.

    Args:
        values: (B,) one number a sample.
        weight: (B,) or ``None``.
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
    """
    if weight is None:
        return F.cross_entropy(logits, y)
    return mean(F.cross_entropy(logits, y, reduction="none"), weight)
