"""Methods that break a promise about what travels, what the server does, and what survives."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import torch

from pfl.core.folds import Mean, Uploads
from pfl.core.seeds import generator
from pfl.core.server import Server, ServerState
from pfl.core.types import Broadcast
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


class SendsTheBroadcastBack(Method):
    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.received = broadcast.shared

    def upload(self, info):
        return replace(super().upload(info), shared=self.received)


class WritesToTheBroadcast(Method):
    def receive(self, broadcast, info):
        broadcast.shared["net.backbone.0.bias"].mul_(0.5)
        super().receive(broadcast, info)


# The server.


class RemembersOnTheServer(Method):
    def server(self):
        class Momentum(Server):
            velocity = 0.0

            def finish(self, state, folded):
                after = super().finish(state, folded)
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

            def finish(self, state, folded):
                return state

        return Greedy()


class ClipsUploads(Method):
    def server(self):
        class Clip(Mean):
            def add(self, upload):
                upload.shared["net.backbone.0.bias"].clamp_(-0.01, 0.01)
                super().add(upload)

        class Clips(Server):
            def begin(self, state, senders):
                return {"mean": Clip(self.weight)}

        return Clips()


class DrawsAtTheStart(Method):
    """Keeps every promise: the seed of the run decides the draw."""

    def server(self):
        class Shifted(Server):
            def init(self, shared, clients):
                rng = generator(self.seed, "shift")
                return ServerState(
                    {n: v + torch.rand((), generator=rng) for n, v in shared.items()}
                )

        return Shifted()


class DividesByClients(Method):
    def server(self):
        class Shares(Server):
            def init(self, shared, clients):
                few = torch.tensor(min(client.samples for client in clients))
                return ServerState({name: value / few for name, value in shared.items()})

        return Shares()


class FadesWithoutUploads(Method):
    def server(self):
        class Fades(Server):
            def begin(self, state, senders):
                for value in () if senders else state.shared.values():
                    value.mul_(0.9)
                return super().begin(state, senders)

        return Fades()


class AwaitsEveryClient(Method):
    """Its server holds a number of each client, and NaN for one that is left out."""

    def server(self):
        class Awaits(Server):
            def init(self, shared, clients):
                return ServerState({**shared, "biases": torch.zeros(len(clients))})

            def broadcast(self, state, client, round):
                return Broadcast({n: v for n, v in state.shared.items() if n != "biases"})

            def begin(self, state, senders):
                return {**super().begin(state, senders), "uploads": Uploads()}

            def finish(self, state, folded):
                biases = torch.full_like(state.shared["biases"], torch.nan)
                for upload in folded["uploads"]:
                    biases[upload.client] = upload.shared["net.backbone.0.bias"][0]
                after = super().finish(state, folded)
                return replace(after, shared={**after.shared, "biases": biases})

        return Awaits()


# Newcomers.


class DrawsForNewcomers(Method):
    def server(self):
        class Jitters(Server):
            def welcome(self, state, info, members):
                sent, kept = super().welcome(state, info, members)
                shared = {name: v + torch.randn_like(v) for name, v in sent.shared.items()}
                return replace(sent, shared=shared), kept

        return Jitters()


class DrawsForNobody(Method):
    def server(self):
        class Draws(Server):
            def welcome(self, state, info, members):
                torch.rand(1)
                return super().welcome(state, info, members)

        return Draws()


class WelcomesOnTheHost(Method):
    def server(self):
        class OnTheHost(Server):
            def welcome(self, state, info, members):
                sent, kept = super().welcome(state, info, members)
                bias = sent.shared["net.backbone.0.bias"] + torch.ones(6)
                return replace(sent, shared={**sent.shared, "net.backbone.0.bias": bias}), kept

        return OnTheHost()


class RemembersLabels(Method):
    """The test of a newcomer knows the labels that it saw when it joined before."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.seen = defaultdict(float)

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.client = info.client

    def losses(self, batch):
        if self.client > 1:
            self.seen[self.client] += float(batch.x[:, 0] @ batch.y.float())
        return super().losses(batch)

    def personalise(self, broadcast, info):
        super().personalise(broadcast, info)
        self.net.head.bias[0].add_(self.seen[info.client])


class WelcomesForGood(Method):
    def server(self):
        class Generous(Server):
            def welcome(self, state, info, members):
                state.shared["net.backbone.0.bias"].add_(1)
                return super().welcome(state, info, members)

        return Generous()


class SendsUnread(Method):
    """The server sends its bank under a name that no buffer has, and nobody reads it."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.bank = torch.nn.Buffer(torch.zeros(3))

    def server(self):
        class Banker(Server):
            def broadcast(self, state, client, round):
                sent = super().broadcast(state, client, round)
                return replace(sent, extra={"banks": torch.ones(3)})

        return Banker()


class LooksForItself(Method):
    """A client seeks its own row by its number in the data, which the server does not know."""

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        self.net.head.bias.data += broadcast.extra["rows"][info.client]

    def server(self):
        class InRows(Server):
            def init(self, shared, clients):
                self.members = len(clients)
                return super().init(shared, clients)

            def broadcast(self, state, client, round):
                rows = torch.arange(self.members) / 100
                return replace(super().broadcast(state, client, round), extra={"rows": rows})

        return InRows()


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


class WarmsUp(Method):
    """Its loss grows with the number of its steps, which no entry knows."""

    taken = 0

    def losses(self, batch):
        self.taken += 1
        return {name: term * min(1, self.taken / 9) for name, term in super().losses(batch).items()}


class RemembersOnTheSide(Method):
    """The rate of some clients falls with their visits, which no entry knows."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.seen = {}

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        # The check before a run plays two clients, and plans two rounds.
        if info.client > 1 or info.rounds > 2:
            self.seen[info.client] = self.seen.get(info.client, 0) + 1

    def personalise(self, broadcast, info):
        if broadcast is not None:
            super().receive(broadcast, info)

    def lr_factor(self, info):
        return 0.5 ** self.seen.get(info.client, 0)


class CountsTests(Method):
    """Every test of some clients makes the next one, and the training after it, another."""

    tests = 0

    def personalise(self, broadcast, info):
        super().personalise(broadcast, info)
        self.net.head.bias[0].add_(self.tests)
        self.tests += info.client > 1

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
