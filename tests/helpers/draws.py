"""Random tensors for tests, from their own seeds."""

from __future__ import annotations

import torch

from pfl.core.seeds import generator


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed, "test"), dtype=torch.float64)


def batch(samples: int, seed: int = 0, size: int = 4):
    """Return features, other features and labels of ``size`` classes."""
    y = torch.randint(size, (samples,), generator=generator(seed, "labels"))
    return normal(samples, size, seed=seed), normal(samples, size, seed=seed + 100), y
