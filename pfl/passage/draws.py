"""Where the noise of a private run comes from."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from pfl.core.noise import normals, streams_of

# Deviation of 53 random bits, the most that a float64 below one can hold.
_BITS = 53


def from_seed(seed: int, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (count,) standard normal draws that the seed alone decides."""
    return normals(streams_of([seed], device), 0, 1, count, dtype)[0, 0]


def from_system(count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (count,) standard normal draws from the operating system's source (Box-Muller)."""
    pairs = -(-count // 2)
    words = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs)
    uniform = ((words >> np.uint64(64 - _BITS)) + 0.5) * 2.0**-_BITS
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
    drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(drawn).to(device, dtype)
