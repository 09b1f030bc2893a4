"""Methods that break a promise about what travels, what the server does, and what survives."""

from __future__ import annotations

from dataclasses import replace

import torch

from pfl.core.server import Server, ServerState
from tests.testing.broken import Method

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


# Newcomers.


class WelcomesForGood(Method):
    def server(self):
        class Generous(Server):
            def welcome(self, state, info, members):
                state.shared["net.backbone.0.bias"].add_(1)
                return super().welcome(state, info, members)

        return Generous()


class CountsNewcomers(Method):
    def server(self):
        class Counting(Server):
            count = 0.0

            def welcome(self, state, info, members):
                self.count += 1
                sent, kept = super().welcome(state, info, members)
                bias = sent.shared["net.backbone.0.bias"] + self.count * len(members)
                shared = {**sent.shared, "net.backbone.0.bias": bias}
                return replace(sent, shared=shared), kept

        return Counting()


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


class SaysItIsGlobal(Method):
    """The network travels whole, and comes to rest at half its length."""

    shared = ("net.*",)
    kept = ()
    one_model = True

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.net.head.weight.mul_(0.5)


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
