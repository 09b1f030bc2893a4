"""Where the noise of a private run comes from."""

from __future__ import annotations

import os
import secrets

import numpy as np
import torch
from torch import Tensor

from pfl.core.noise import normals, streams_of
from pfl.core.seeds import derive
from pfl.core.types import Job

# Random bits of a draw: as many as leave room for half a step, so that none is zero or one.
_BITS = 52


def from_seed(seed: int, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (count,) standard normal draws that the seed alone decides."""
    return normals(streams_of([seed], device), 0, 1, count, dtype)[0, 0]


def from_system(count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return (count,) standard normal draws from the operating system's source."""
    words = np.frombuffer(os.urandom(8 * count), np.uint64)
    uniform = ((words >> np.uint64(64 - _BITS)) + 0.5) * 2.0**-_BITS
    drawn: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return drawn.to(device, dtype)


def seed_of(job: Job, *path: str | int) -> int:
    """Return a seed of a client's random choices, which the job's seed and a path decide.

    Where noise comes from the system, so does this: a server that knew who is in a batch, or which
    sample has which draws, would know more than the noise is accounted for.
    """
    if job.sample_level is not None and job.sample_level.system:
        return secrets.randbits(63)
    return derive(job.seed, *path)
