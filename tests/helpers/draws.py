"""Random tensors for tests, from their own seeds."""

from __future__ import annotations

import torch

from pfl.core.seeds import generator
from pfl.core.types import Batch, Upload


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed, "test"), dtype=torch.float64)


def batch(samples: int, seed: int = 0, size: int = 4):
    """Return features, other features and labels of ``size`` classes."""
    y = torch.randint(size, (samples,), generator=generator(seed, "labels"))
    return normal(samples, size, seed=seed), normal(samples, size, seed=seed + 100), y


def some(samples=6):
    """Return a batch of five features and three classes."""
    rng = generator(5, "batch")
    return Batch(torch.randn(samples, 5, generator=rng), torch.arange(samples) % 3)


def upload(client, samples, value):
    """Return the upload of one number."""
    return Upload(client, samples, {"w": torch.tensor([value])})
