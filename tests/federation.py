"""Short federations for the tests of methods."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from lightning.fabric import Fabric
from torch import nn

from pfl import local
from pfl.callbacks import Callback
from pfl.loop import FederatedLoop
from pfl.state import clone
from pfl.types import ClientInfo, Job
from tests.toy import ToyData

SGD = partial(torch.optim.SGD, lr=0.1)
HEAVY = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


def fit(module, data, rounds=3, **loop):
    return FederatedLoop(rounds=rounds, progress=False, **loop).fit(module, data)


@dataclass
class Snapshot:
    """What is known after a round."""

    trained: tuple[int, ...]
    server: object
    kept: dict
    clients: list


def follow(module, data, rounds=3, **loop):
    """The run, and a snapshot of each round."""
    found = []

    class Watch(Callback):
        def on_round_end(self, run, result):
            kept = {client: clone(state) for client, state in run.kept.items()}
            found.append(Snapshot(result.cohort.trains, run.server, kept, result.clients))

    return fit(module, data, rounds, callbacks=[Watch()], **loop), found


def context(module, data):
    return local.Context(module, data, Fabric(accelerator="cpu", devices=1))


def job(data, client=0, broadcast=None, kept=None, seed=3, round=1, rounds=10, splits=()):
    labels = data.split(client, "train").labels
    counts = torch.bincount(labels, minlength=data.num_classes)
    info = ClientInfo(client, len(labels), counts, round, rounds)
    return Job(info, kept or {}, broadcast, seed, splits)


def equal(a, b):
    """Bitwise the same entries."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def close(a, b, atol=1e-6):
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=atol) for n in a)


def sitting_out(snapshots):
    """(state before, state after) of every client in every round in which it did not train."""
    for before, after in pairwise(snapshots):
        for client in before.kept.keys() - set(after.trained):
            yield before.kept[client], after.kept[client]


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
