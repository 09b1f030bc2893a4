"""Distances between the surfaces of structures in images, (H, W) or (D, H, W)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Number of distances that are computed at a time.
_PART = 2**22


def hausdorff(guess: Tensor, truth: Tensor, share: float = 0.95) -> float:
    """Return the quantile of the distances between two surfaces, the larger of both directions.

    The surface of a structure is its pixels beside one outside; outside the image there is none of
    it. With ``share = 0.95`` this is the Hausdorff distance HD95, in pixels. If nothing is guessed,
    it is the image's diagonal, which no distance exceeds.

    Args:
        guess: (H, W) or (D, H, W), whether each pixel is guessed to be of the structure.
        truth: Whether it is; at least one pixel is.
        share: The quantile.

    Example:
        >>> one, other = torch.zeros(2, 5, 5, dtype=torch.bool)
        >>> one[2, 0], other[2, 3] = True, True
        >>> hausdorff(one, other)
        3.0
    """
    if not guess.any():
        return math.hypot(*truth.shape)
    ours, theirs = surface(guess), surface(truth)
    return max(_quantile(ours, theirs, share), _quantile(theirs, ours, share))


def surface(mask: Tensor) -> Tensor:
    """Return the (E, d) coordinates of the pixels of a structure that have one outside beside."""
    inner = mask
    for axis in range(mask.dim()):
        outside = torch.zeros_like(mask.narrow(axis, 0, 1))
        rest = mask.shape[axis] - 1
        before = torch.cat([outside, mask.narrow(axis, 0, rest)], axis)
        after = torch.cat([mask.narrow(axis, 1, rest), outside], axis)
        inner = inner & before & after
    return (mask & ~inner).nonzero().cpu().double()


def _quantile(ours: Tensor, theirs: Tensor, share: float) -> float:
    exact = "donot_use_mm_for_euclid_dist"
    parts = torch.split(ours, max(1, _PART // len(theirs)))
    nearest = [torch.cdist(part, theirs, compute_mode=exact).amin(1) for part in parts]
    return float(torch.cat(nearest).quantile(share))
