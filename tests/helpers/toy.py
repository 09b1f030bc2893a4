"""The federation of :mod:`pfl.testing`, and even smaller networks and data."""

from __future__ import annotations

import torch
from torch import nn

from lightning_modules.nets import SplitNet
from pfl.core.seeds import generator, scoped
from pfl.testing.toy import ToyData, blobs, mlp, normed

__all__ = ["Line", "Point", "ToyData", "blobs", "contradicting", "lines", "mlp", "normed"]
__all__ += ["Sequences", "attention", "drawing"]


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
    """Return two well separated classes; for some clients the labels are swapped."""
    rng, train = generator(seed, "clusters"), []
    for client, size in enumerate(sizes):
        y = torch.arange(size) % 2
        x = torch.randn(size, 5, generator=rng) + 3.0 * (2 * y - 1)[:, None]
        train.append((x, 1 - y if client in flipped else y))
    return ToyData(train, outputs=2, batch_size=batch_size)


class Sequences(nn.Module):
    """(B, 6) inputs as sequences of six numbers; ``layer`` maps (B, 6, 6) to the same shape."""

    def __init__(self, layer):
        super().__init__()
        self.lift, self.layer = nn.Linear(1, 6), layer

    def forward(self, x):
        found = self.layer(self.lift(x[..., None]))
        return (found[0] if isinstance(found, tuple) else found).mean(1)


def drawing(*layers):
    """Make a network with random layers; each function returns one, from (B, 6) to (B, 6)."""
    with scoped(1):
        body = nn.Sequential(nn.Linear(5, 6), *(make() for make in layers), nn.Tanh())
        return SplitNet(body, nn.Linear(6, 3))


def attention(**options):
    """Make an attention layer with dropout."""
    return Sequences(nn.TransformerEncoderLayer(6, 2, 8, 0.3, **options))
