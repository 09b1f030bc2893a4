"""A federation stepped by hand: one client's round, or one round of chosen clients, at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from lightning.fabric import Fabric

from pfl import local
from pfl.seeds import derive
from pfl.state import clone
from pfl.types import ClientInfo, Job
from tests.toy import blobs


def sgd(lr=0.1, **options):
    return partial(torch.optim.SGD, lr=lr, **options)


class Federation:
    """Clients, server and what they hold; nothing happens unless a test asks for it."""

    def __init__(self, module, data=None, rounds=10, seed=3, precision="32-true"):
        self.data = blobs() if data is None else data
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        self.context = local.Context(module, self.data, fabric)
        self.module, self.seed, self.number, self.kept = module, seed, 0, {}
        self.infos = []
        for client in range(self.data.num_clients):
            labels = self.data.split(client, "train").labels
            counts = torch.bincount(labels, minlength=self.data.num_classes)
            self.infos.append(ClientInfo(client, len(labels), counts, rounds=rounds))
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


def same(one, other):
    """Whether two states have the same names and bits."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
