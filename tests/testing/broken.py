"""Two methods that keep every promise, and methods that break one each in a line or two."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from lightning_modules.base import ClientModule
from lightning_modules.losses import cross_entropy
from pfl.server import Server, ServerState
from pfl.types import Pass, Phase


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
        return {"ce": cross_entropy(self.net.head(z), batch.y, batch.weight)}


# How it is built.


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


class Climbs(Method):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, maximize=True)


# Plans and their functions.


class ReadsInPlan(Method):
    def plan(self):
        return [] if self.visits > 1 else super().plan()


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


class DrawsInReceive(Method):
    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.net.head.bias.add_(float(np.random.rand()))


class DrawsOnTheServer(Method):
    def server(self):
        class Lottery(Server):
            def aggregate(self, state, uploads):
                return super().aggregate(state, [random.choice(uploads)] if uploads else [])

        return Lottery()


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


# What travels.


class UploadsAndForgets(Method):
    def upload(self, info):
        found = super().upload(info)
        self.net.head.reset_parameters() if info.client < 0 else self.visits.zero_()
        return found


class SendsMore(Method):
    def upload(self, info):
        return replace(super().upload(info), extra={"count": self.visits.clone()})


class SendsHead(Method):
    def upload(self, info):
        found = super().upload(info)
        return replace(found, shared={**found.shared, "net.head.bias": self.net.head.bias.clone()})


class SendsFlat(Method):
    def upload(self, info):
        found = super().upload(info)
        return replace(found, shared={name: v.flatten() for name, v in found.shared.items()})


class SendsNothing(Method):
    def upload(self, info):
        return None


class TakesTheBroadcastItself(Method):
    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.net.backbone[0].weight.data = broadcast.shared["net.backbone.0.weight"]


class SendsItsOwnWeights(Method):
    def upload(self, info):
        entries = self.state_dict()
        return replace(super().upload(info), shared={n: entries[n] for n in self.shared_names()})


class WritesToTheBroadcast(Method):
    def receive(self, broadcast, info):
        broadcast.shared["net.backbone.0.bias"].mul_(0.5)
        super().receive(broadcast, info)


# The server.


class RemembersOnTheServer(Method):
    def server(self):
        class Momentum(Server):
            velocity = 0.0

            def aggregate(self, state, uploads):
                after = super().aggregate(state, uploads)
                name = "net.backbone.0.bias"
                self.velocity = 0.5 * self.velocity + after.shared[name] - state.shared[name]
                moved = state.shared[name] + self.velocity
                return replace(after, shared={**after.shared, name: moved})

        return Momentum()


class KeepsOnTheServer(Method):
    def server(self):
        class Greedy(Server):
            def init(self, shared, clients):
                return ServerState({**shared, "visits": torch.zeros(())})

            def aggregate(self, state, uploads):
                return replace(state, round=state.round + 1)

        return Greedy()


class DividesByClients(Method):
    def server(self):
        class Shares(Server):
            def init(self, shared, clients):
                return ServerState(shared, report={"share": 1 / min(c.samples for c in clients)})

        return Shares()


class NeedsUploads(Method):
    def server(self):
        class Eager(Server):
            def aggregate(self, state, uploads):
                return replace(super().aggregate(state, uploads[:1]), round=uploads[0].client)

        return Eager()


# What survives.


class FollowsThePrevious(Method):
    previous = 0

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.visits.fill_(self.previous)
        self.previous = info.client


class RemembersOnTheSide(Method):
    """A client's rate falls with its visits, which no entry knows."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.seen = {}

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.seen[info.client] = self.seen.get(info.client, 0) + 1

    def personalise(self, broadcast, info):
        if broadcast is not None:
            super().receive(broadcast, info)

    def lr_factor(self, info):
        return 0.5 ** self.seen.get(info.client, 0)


class CountsTests(Method):
    """Every test makes the next one, and the training after it, another."""

    tests = 0

    def personalise(self, broadcast, info):
        super().personalise(broadcast, info)
        self.net.head.bias[0].add_(self.tests)
        self.tests += 1

    def lr_factor(self, info):
        return 1 / (1 + self.tests)


class Standardises(Method):
    def losses(self, batch):
        return super().losses(batch._replace(x=batch.x / batch.x.std(0)))


class SwallowsNan(Method):
    def forward(self, x):
        return self.net(x.nan_to_num())


class ScalesBySamples(Method):
    """By a number beside the entries, of which a stack has one."""

    scale = 1

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.scale = info.samples

    def losses(self, batch):
        return {name: term * self.scale for name, term in super().losses(batch).items()}
