"""Short federations, run by the loop or stepped one client or round at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

from lightning_modules.fedavg import FedAvg
from pfl.core.data import info_of
from pfl.core.state import clone
from pfl.core.types import Job
from pfl.federation.run import Callback
from pfl.loop import FederatedLoop
from pfl.testing.federation import ToyFederation
from pfl.training import client_round
from pfl.training.contexts import Contexts
from pfl.training.phases import rule_of
from tests.helpers.toy import mlp


def sgd(lr=0.1, **options):
    return partial(torch.optim.SGD, lr=lr, **options)


SGD = sgd()
HEAVY = sgd(momentum=0.9, weight_decay=0.01)


def fit(module, data, rounds=3, **loop):
    return FederatedLoop(rounds=rounds, progress=False, **loop).fit(module, data)


def centralised(data, steps):
    """Return a network after full-batch steps of :data:`HEAVY` on the data of client 0."""
    module, split = FedAvg(mlp()), data.split(0, "train")
    optimizer = HEAVY(module.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(module(split.x), split.targets).backward()
        optimizer.step()
    return module.state_dict()


@dataclass
class Snapshot:
    """A record of the states after a round."""

    trained: tuple[int, ...]
    server: object
    kept: dict
    clients: list


class Diverges(FedAvg):
    """FedAvg whose client 1 uploads a head that is not finite."""

    def upload(self, info):
        upload = super().upload(info)
        if info.client == 1:
            upload.shared["net.head.weight"][0] = float("nan")
        return upload


class LacksKernel(FedAvg):
    """A method with an operation that half precision does not support."""

    def losses(self, batch):
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("not implemented for 'BFloat16'")
        return super().losses(batch)


def follow(module, data, rounds=3, **loop):
    """Run a federation; return it and a snapshot of each round."""
    found = []

    class Watch(Callback):
        def on_round_end(self, run, result):
            kept = {client: clone(state) for client, state in run.kept.items()}
            found.append(Snapshot(result.cohort.trains, run.server, kept, result.clients))

    return fit(module, data, rounds, callbacks=[Watch()], **loop), found


def context(module, data, precision="32-true", **options):
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    return client_round.Context(module, data, fabric, **options)


def contexts(module, data, precision="32-true", **options):
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    return Contexts(module, data, fabric, **options)


def job(data, client=0, broadcast=None, kept=None, seed=3, round=1, rounds=10, splits=()):
    info = replace(info_of(data, client, rounds), round=round)
    return Job(info, kept or {}, broadcast, seed, splits)


def steps(context, job, phase, length, samples):
    """Return the steps of a phase for a client with so many samples."""
    return list(rule_of(context, job).steps(context, job, phase, length, samples))


class Federation(ToyFederation):
    """A federation whose personalised models can be inspected."""

    def test(self, client, split="test"):
        """Return the scores of the client's personalised model, which stays loaded."""
        job = self.job(client, self.number, (split,))
        return client_round.test(self.context, job).get(split)

    def personal(self, client):
        """Return the state of the client's personalised model, which stays loaded."""
        client_round.test(self.context, self.job(client, self.number))
        return clone(self.module.net.state_dict())

    def start(self, client=0):
        """Begin the client's next round on the module."""
        job = self.job(client)
        self.context.load(job.kept)
        with torch.no_grad():
            self.module.receive(job.broadcast, job.info)
        return self.module


def own(federation, client, stem="own.module."):
    """Return the client's own network, from its kept state."""
    kept = federation.kept[client]
    return {f"net.{n.removeprefix(stem)}": v for n, v in kept.items() if n.startswith(stem)}


def equal(a, b):
    """Return ``True`` if two states have the same names and are bitwise equal."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def differing(before, after):
    """Return the names of the entries that are not bitwise equal."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def close(a, b, atol=1e-6):
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=atol) for n in a)
