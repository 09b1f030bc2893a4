"""Methods that keep every promise, and methods that break one each in a line or two."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from lightning_modules.base import ClientModule
from lightning_modules.losses import cross_entropy
from pfl.core.folds import Uploads
from pfl.core.server import Server
from pfl.core.types import Pass, Phase


class Method(ClientModule):
    """Keeps every promise; the backbone travels, the head stays, and visits are counted."""

    shared = ("net.backbone.*",)
    kept = ("net.head.*", "visits")
    vectorizable = True

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.register_buffer("visits", torch.zeros(()))

    def plan(self):
        train = Phase(name="local", objective=self.losses, trains=("net.*",))
        return [train, Pass(name="count", then=lambda totals: {"visits": self.visits + 1})]


class DropsOut(Method):
    """Keeps every promise too; an engine lends it the default stream."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.drop = torch.nn.Dropout(0.2)

    def losses(self, batch):
        z = self.drop(self.net.backbone(batch.x))
        return self.supervised(self.net.head(z), batch)


# How it is built.


class IsAPlainModule(torch.nn.Module):
    def __init__(self, net, optimizer):
        super().__init__()


class TakesAnything(Method):
    def __init__(self, net, optimizer, **options):
        super().__init__(net, optimizer=optimizer)


class GuessesWords(Method):
    def __init__(self, net, buffers: Literal["average", "local"] = "average", **options):
        buffers = "local" if buffers == "local" else "average"
        super().__init__(net, buffers=buffers, **options)


class GivesFeatures(Method):
    def forward(self, x):
        return self.net.backbone(x)

    def losses(self, batch):
        return {"ce": cross_entropy(self.net(batch.x), batch.y, batch.weight)}


class KeepsNothingOfThatName(Method):
    kept = ("net.haed.*",)


class KeepsInVain(Method):
    """What it keeps of the network is replaced by what it receives."""

    shared = ("net.*",)


class Stays(Method):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


# The loss of targets.


class HasItsOwnLoss(Method):
    def losses(self, batch):
        return {"ce": cross_entropy(self(batch.x), batch.y, batch.weight)}


class WeighsByItsOwnLoss(Method):
    """Trains by the task's loss, and keeps the cross-entropy."""

    def plan(self):
        def loss(batch):
            return {"loss": cross_entropy(self(batch.x).detach(), batch.y)}

        def keep(totals):
            return {"visits": totals.sums["loss"]}

        return [*super().plan(), Pass(name="keep", statistic=loss, then=keep)]


class CountsClasses(Method):
    """Keeps the share of the first class, which is no loss."""

    def plan(self):
        def count(batch):
            return {"first": (batch.y[:2] == 0).float().sum()}

        def keep(totals):
            return {"visits": totals.sums["first"]}

        return [*super().plan(), Pass(name="classes", statistic=count, then=keep)]


# Plans and their functions.


class ReadsInAdapt(Method):
    def adapt(self):
        return [Phase(name="tune", objective=self.losses, epochs=int(self.visits))]


class PlansForOneClient(Method):
    length = 1

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.length = info.samples

    def plan(self):
        return [Phase(name="local", objective=self.losses, steps=self.length)]


class DrawsInObjective(Method):
    def losses(self, batch):
        return super().losses(batch._replace(x=batch.x + 0.1 * torch.randn_like(batch.x)))


class WeighsOnTheHost(Method):
    def losses(self, batch):
        return super().losses(batch._replace(x=batch.x * torch.ones(batch.x.shape[-1])))


class AddsOnTheHost(Method):
    def server(self):
        class Shifted(Server):
            def finish(self, state, folded):
                after = super().finish(state, folded)
                return replace(
                    after, shared={n: v + torch.zeros(v.shape) for n, v in after.shared.items()}
                )

        return Shifted()


class UsesNumpy(Method):
    def losses(self, batch):
        np.bincount(batch.y)
        return super().losses(batch)


class DrawsInReceive(Method):
    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.net.head.bias.add_(float(np.random.rand()))


class DrawsOnTheServer(Method):
    def server(self):
        class Lottery(Server):
            def begin(self, state, senders):
                return {"uploads": Uploads()}

            def finish(self, state, folded):
                return replace(state, shared=random.choice(folded["uploads"]).shared)

        return Lottery()


class DrawsFromNumpyInObjective(Method):
    def losses(self, batch):
        return super().losses(batch._replace(x=batch.x + np.random.rand()))


class MutatesInObjective(Method):
    def losses(self, batch):
        self.visits += 1
        return super().losses(batch)


class CountsInObjective(Method):
    calls = 0

    def losses(self, batch):
        self.calls += 1
        return super().losses(batch)


class CollectsInObjective(Method):
    def plan(self):
        seen = []

        def objective(batch):
            seen.append(batch.y)
            return self.losses(batch)

        return [Phase(name="local", objective=objective)]


class ShiftsItsBatch(Method):
    def losses(self, batch):
        batch.x.add_(1)
        return super().losses(batch)


class ForgetsWeight(Method):
    def losses(self, batch):
        return {"ce": F.cross_entropy(self(batch.x), batch.y)}


class ForgetsWeightInStatistic(Method):
    def plan(self):
        def centre(batch):
            return {"centre": self.net.backbone(batch.x).sum(0)}

        return [*super().plan(), Pass(name="centre", statistic=centre, then=lambda totals: {})]
