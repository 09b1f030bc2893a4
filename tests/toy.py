"""A federation of a few samples, made of tensors, on which loop, engines and methods are tested."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_modules.nets import SplitNet
from pfl.seeds import generator, scoped
from pfl.types import Batch


class ToySplit:
    augmented = False

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.labels = x, y

    def __len__(self):
        return len(self.labels)

    def batch(self, positions, rng=None):
        x = self.x[positions]
        return Batch(x.to(torch.get_default_dtype()), self.labels[positions])


class ToyData:
    """Clients of given tensors; ``train``, ``val`` and ``test`` map a client to ``(x, y)``."""

    def __init__(self, train, test=None, val=None, pooled=None, num_classes=3, batch_size=4):
        self.batch_size, self.eval_batch_size = batch_size, 7
        self.drop_last, self.shuffle = False, True
        self._splits = {"train": train, "test": test or train, "val": val}
        self._pooled = pooled
        self.num_clients, self.num_classes = len(train), num_classes

    def split(self, client, name):
        pairs = self._splits[name]
        if pairs is None:
            x, y = self._splits["train"][client]
            return ToySplit(x[:0], y[:0])
        return ToySplit(*pairs[client])

    def pooled_test(self):
        return None if self._pooled is None else ToySplit(*self._pooled)

    def to(self, device):
        pass

    def description(self):
        return {"hash": "toy"}


def blobs(sizes=(9, 6, 4), num_classes=3, dim=5, seed=0, batch_size=4, pooled=True):
    """Gaussian classes; client i has fewer samples of class i, so that clients differ."""
    rng = generator(seed, "blobs")
    centres = torch.randn(num_classes, dim, generator=rng) * 2

    def draw(count, client):
        y = torch.randint(0, num_classes, (count,), generator=rng)
        y[: count // 2] = (client + 1) % num_classes
        return centres[y] + 0.5 * torch.randn(count, dim, generator=rng), y

    train = [draw(size, client) for client, size in enumerate(sizes)]
    test = [draw(6, client) for client in range(len(sizes))]
    val = [draw(4, client) for client in range(len(sizes))]
    return ToyData(train, test, val, draw(12, 0) if pooled else None, num_classes, batch_size)


def mlp(num_classes=3, dim=5, hidden=6, seed=1):
    """A network with 5 -> 6 -> 3 units; weights depend on the seed only."""
    with scoped(seed):
        return SplitNet(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU()), nn.Linear(hidden, num_classes)
        )


def normed(num_classes=3, dim=5, hidden=6, seed=1):
    """The same with batch norm in the backbone."""
    with scoped(seed):
        return SplitNet(
            nn.Sequential(nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            nn.Linear(hidden, num_classes),
        )


class Line(nn.Module):
    """y = w x, one parameter."""

    def __init__(self, value=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value]))

    def forward(self, x):
        return x * self.w


def lines(*slopes):
    """One sample a client, x = slope: the loss ``(x * w).mean()`` has this constant gradient."""
    y = torch.zeros(1, dtype=torch.long)
    return ToyData([(torch.full((1, 1), slope), y) for slope in slopes])


class Point(nn.Module):
    """Its output is its only parameter, w: (D,); the input is not looked at."""

    def __init__(self, *w):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, x):
        return self.w
