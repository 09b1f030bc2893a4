"""The federation of :mod:`pfl.testing`, and even smaller networks and data."""

from __future__ import annotations

import torch
from torch import nn

from pfl.core.seeds import generator
from pfl.testing.toy import ToyData, blobs, mlp, normed

__all__ = ["Line", "Point", "ToyData", "blobs", "contradicting", "lines", "mlp", "normed"]


class Line(nn.Module):
    """y = w x, one parameter."""

    def __init__(self, value=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value]))

    def forward(self, x):
        return x * self.w


def lines(*slopes):
    """Return one sample per client, x = slope: ``(x * w).mean()`` has this constant gradient."""
    y = torch.zeros(1, dtype=torch.long)
    return ToyData([(torch.full((1, 1), slope), y) for slope in slopes])


class Point(nn.Module):
    """A network whose output is its only parameter, w: (D,); the input is ignored."""

    def __init__(self, *w):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, x):
        return self.w


def contradicting(sizes=(8, 8, 12, 12), flipped=(2, 3), seed=0, batch_size=4):
    """Return two well separated classes; some clients have the labels exchanged."""
    rng, train = generator(seed, "clusters"), []
    for client, size in enumerate(sizes):
        y = torch.arange(size) % 2
        x = torch.randn(size, 5, generator=rng) + 3.0 * (2 * y - 1)[:, None]
        train.append((x, 1 - y if client in flipped else y))
    return ToyData(train, outputs=2, batch_size=batch_size)
