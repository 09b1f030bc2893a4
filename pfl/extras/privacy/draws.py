"""Sources of the noise of private runs."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from pfl.core.noise import normals, streams_of

# Random bits of a draw, with room for half a step, so that no draw is zero or one.
_BITS = 52


def from_seed(seed: int, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (count,) standard normal draws determined by the seed."""
    return normals(streams_of([seed], device), 0, 1, count, dtype)[0, 0]


def from_system(count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (count,) standard normal draws from the operating system's source."""
    words = np.frombuffer(os.urandom(8 * count), np.uint64)
    uniform = ((words >> np.uint64(64 - _BITS)) + 0.5) * 2.0**-_BITS
    drawn: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return drawn.to(device, dtype)
