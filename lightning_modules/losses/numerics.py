"""Small operations on tensors that loss terms and methods share; all run under vmap."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(y: Tensor, num_classes: int, like: Tensor) -> Tensor:
    """(B, C) membership in classes, without the look at the values that vmap forbids.

    Args:
        y: (B,) labels.
        num_classes: C.
        like: Gives the type.

    Example:
        >>> one_hot(torch.tensor([1, 0]), 2, torch.zeros(0)).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    return (y[:, None] == torch.arange(num_classes, device=y.device)).to(like.dtype)


def unit(z: Tensor) -> Tensor:
    """Rows of length one; a row of zeros stays and has a gradient of ordinary size.

    ``torch.nn.functional.normalize`` divides the gradient of such a row by its ``eps``, which makes
    it 1e12 times too large.

    Args:
        z: (..., D).

    Example:
        >>> unit(torch.tensor([[0.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z / torch.where(length > 1e-12, length, 1.0)


def full_precision(z: Tensor) -> torch.autocast:
    """A scope in which autocast does not lower the precision of what is computed from ``z``."""
    return torch.autocast(z.device.type, enabled=False)


def at_least_float32(z: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return z if z.dtype.itemsize >= 4 else z.float()
