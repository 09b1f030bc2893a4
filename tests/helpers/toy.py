"""The federation of :mod:`pfl.testing`, and even smaller networks and data."""

from __future__ import annotations

import torch
from torch import nn

from pfl.testing.toy import ToyData, blobs, mlp, normed

__all__ = ["Line", "Point", "ToyData", "blobs", "lines", "mlp", "normed"]


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
