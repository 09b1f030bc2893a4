"""Small tensor operations that loss terms share; all run under vmap."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(y: Tensor, num_classes: int, like: Tensor) -> Tensor:
    """Return (B, C) one-hot labels; unlike torch's function, this one runs under vmap.

    Args:
        y: (B,) labels.
        num_classes: Number of classes, C.
        like: A tensor with the type of the result.

    Example:
        >>> one_hot(torch.tensor([1, 0]), 2, torch.zeros(0)).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    return (y[:, None] == torch.arange(num_classes, device=y.device)).to(like.dtype)


def unit(z: Tensor) -> Tensor:
    """Scale rows to length one; a row of zeros stays zero, and its gradient stays small.

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


def gumbel(normal: Tensor) -> Tensor:
    """Turn standard normal draws into standard Gumbel draws, by their distribution functions.

    Args:
        normal: (...).

    Example:
        >>> gumbel(torch.tensor([0.0, 3.0]))  # -log(log 2), and -log(-log 0.99865)
        tensor([0.3665, 6.6071])
    """
    # log_ndtr has no rule for vmap. A tail is at most 1/2, so neither logarithm loses digits.
    tail = torch.erfc(normal.abs() / 2**0.5) / 2
    return -torch.where(normal > 0, -torch.log1p(-tail), -tail.log()).log()


def full_precision(z: Tensor) -> torch.autocast:
    """Return a context that disables autocast on the device of ``z``."""
    return torch.autocast(z.device.type, enabled=False)


def at_least_float32(z: Tensor) -> Tensor:
    """Convert half precision to float32; leave float32 and float64."""
    return z if z.dtype.itemsize >= 4 else z.float()


def mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Average over the real samples; 0 if there are none.

    Args:
        values: (B,) one number per sample.
        weight: (B,) or ``None``.

    Example:
        >>> mean(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([1.0, 1.0, 0.0]))
        tensor(2.)
    """
    if weight is None:
        return values.mean()
    return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)
