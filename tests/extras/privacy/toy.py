"""A private uplink of a few numbers: two entries of a network and one extra, a plain server."""

from dataclasses import replace

import torch

from pfl.core.folds import Fold
from pfl.core.server import Server, ServerState
from pfl.core.types import Broadcast, ClientInfo, Job, Result, State, Upload
from pfl.extras.privacy.account import Witness
from pfl.extras.privacy.clients import ClientAccount
from pfl.extras.privacy.privacy import Privacy

START = {"a": torch.zeros(2), "b": torch.zeros(1)}


class Extras(Fold):
    """The mean of what is sent in addition."""

    def add(self, upload):
        raise NotImplementedError

    def value(self):
        raise NotImplementedError

    def of_mean(self, mean, count):
        return mean.extra


class Keeps(Server):
    """A server that also keeps the mean of the extra entry."""

    def begin(self, state, senders):
        return {**super().begin(state, senders), "extras": Extras()}

    def finish(self, state, folded):
        after = super().finish(state, folded)
        return replace(after, report={n: float(v) for n, v in folded["extras"].items()})


def passage(clip=1.0, sigma=0.0, rate=1.0, clients=2, seed=0, extra=(), **options) -> ClientAccount:
    held: State = {name: torch.zeros(()) for name in extra}
    privacy = Privacy(clip, sigma, 1e-5, **options).plain
    # As a run accepts it.
    witness = Witness(ClientAccount, replace(privacy), accepted=True)
    return ClientAccount(privacy, rate, clients, held, seed, Keeps(), received, witness)


def received(state: ServerState) -> Broadcast:
    return Broadcast(state.shared)


def uploaded(own: ClientAccount, *changes, state=None, samples=1, start=START) -> list[Upload]:
    """Return what clients send that changed the network (and the extras) by so much."""
    state = ServerState(start) if state is None else state
    found = []
    for client, change in enumerate(changes):
        info = ClientInfo(client, samples, None)
        job = Job(info, {}, Broadcast(state.shared), 0)
        shared = {name: state.shared[name] + torch.tensor(change[name]) for name in start}
        extra = {name: torch.tensor(change[name]) for name in own.extra}
        upload = Upload(client, samples, shared, extra)
        result = own.step(state).sent(job, Result(client, upload, {}, {}, 1, samples))
        found.append(result.upload)
    return found


def after(own: ClientAccount, uploads, state=None, start=START) -> ServerState:
    state = ServerState(start) if state is None else state
    found = own.fold(state)
    for upload in uploads:
        found.add(upload)
    return found.finish()


def played(own: ClientAccount, *changes, state=None, start=START) -> ServerState:
    """Return the server's state after a round of clients that changed the network by so much."""
    return after(own, uploaded(own, *changes, state=state, start=start), state, start)
