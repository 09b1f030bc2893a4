"""Short federations: as the loop runs them, or stepped by hand, a client or a round at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from lightning.fabric import Fabric

from pfl import local
from pfl.callbacks import Callback
from pfl.loop import FederatedLoop
from pfl.seeds import derive
from pfl.state import clone
from pfl.types import ClientInfo, Job
from tests.toy import blobs


def sgd(lr=0.1, **options):
    return partial(torch.optim.SGD, lr=lr, **options)


SGD = sgd()
HEAVY = sgd(momentum=0.9, weight_decay=0.01)


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


def sitting_out(snapshots):
    """(state before, state after) of every client in every round in which it did not train."""
    for before, after in pairwise(snapshots):
        for client in before.kept.keys() - set(after.trained):
            yield before.kept[client], after.kept[client]


def context(module, data, precision="32-true", **options):
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    return local.Context(module, data, fabric, **options)


def info(data, client=0, round=1, rounds=10):
    labels = data.split(client, "train").labels
    counts = torch.bincount(labels, minlength=data.num_classes)
    return ClientInfo(client, len(labels), counts, round, rounds)


def job(data, client=0, broadcast=None, kept=None, seed=3, round=1, rounds=10, splits=()):
    return Job(info(data, client, round, rounds), kept or {}, broadcast, seed, splits)


class Federation:
    """Clients, server and what they hold; nothing happens unless a test asks for it."""

    def __init__(self, module, data=None, rounds=10, seed=3, precision="32-true"):
        self.data = blobs() if data is None else data
        self.context = context(module, self.data, precision)
        self.module, self.seed, self.number, self.kept = module, seed, 0, {}
        clients = range(self.data.num_clients)
        self.infos = [info(self.data, client, 0, rounds) for client in clients]
        self.server = module.server()
        names = module.shared_names()
        shared = clone({name: self.context.template[name] for name in names})
        self.state = self.server.init(shared, self.infos)

    def job(self, client, number=None):
        number = self.number + 1 if number is None else number
        return Job(
            info=replace(self.infos[client], round=number),
            kept=self.kept.get(client, {}),
            broadcast=self.server.broadcast(self.state, client, number),
            seed=derive(self.seed, "client", number, client),
        )

    def train(self, client):
        """One client's round; the federation stays as it was."""
        return local.train(self.context, self.job(client))

    def round(self, *clients):
        """A round of these clients, or of all: trains, aggregates, keeps; returns the results."""
        results = [self.train(client) for client in clients or range(self.data.num_clients)]
        self.kept.update({result.client: result.kept for result in results})
        uploads = [result.upload for result in results if result.upload is not None]
        self.state = self.server.aggregate(self.state, uploads)
        self.number += 1
        return results

    def test(self, client, split="test"):
        """Scores of the client's personalised model, in which the module is left."""
        job = replace(self.job(client, self.number), splits=(split,))
        return local.test(self.context, job).get(split)

    def personal(self, client):
        """The state of the client's personalised model, in which the module is left."""
        local.test(self.context, self.job(client, self.number))
        return clone(self.module.net.state_dict())

    def start(self, client=0):
        """The module as the client's next round begins."""
        job = self.job(client)
        self.context.load(job.kept)
        with torch.no_grad():
            self.module.receive(job.broadcast, job.info)
        return self.module


def own(federation, client, stem="own.module."):
    """The client's own network, from what it keeps."""
    kept = federation.kept[client]
    return {f"net.{n.removeprefix(stem)}": v for n, v in kept.items() if n.startswith(stem)}


def equal(a, b):
    """Whether two states have the same names and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def close(a, b, atol=1e-6):
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=atol) for n in a)
