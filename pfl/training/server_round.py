"""The server's part of a round: its clients' jobs, and the aggregation of their uploads.

The server sees only members, numbered from 0 in the order of the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from pfl.core.data import absent_info, info_of, members
from pfl.core.failure import during
from pfl.core.seeds import derive
from pfl.core.server import Folding, Round, Server, ServerState
from pfl.core.state import clone, message_size, to
from pfl.core.types import Broadcast, ClientInfo, Job, Phase, Result, Split, State, Upload
from pfl.training.chain import Chain
from pfl.training.context import Context
from pfl.training.declaration import MethodError
from pfl.training.uplink import Start, UplinkStep

# What takes the place of verbs that servers no longer have.
_REPLACED = {
    "aggregate": "begin() and finish()",
    "merge": "begin() and finish()",
    "merge_mean": "of_mean() of the folds that begin() declares",
    "weights": "weight(), of one upload,",
    "with_mean": "finish()",
}


class Coordinator:
    """Makes clients' jobs and aggregates their uploads; it has no state between rounds.

    Attributes:
        server: The method's server.
        client_class: The method.
        clients: Information on each client before the first round; empty if it is no member.
        eligible: The clients that have training data.
        chain: The steps between clients and server; see :meth:`bind`.

    Args:
        context: The method with its initial values, the data and the device.
        rounds: Planned number of rounds.
        seed: Seed of all random choices of clients and server.

    Raises:
        MethodError: ``server()`` does not return a server; or it needs public data, and there are
            none; or it overrides a verb that no run calls.
    """

    def __init__(self, context: Context, rounds: int, seed: int) -> None:
        data = context.data
        with during("the method's server()"):
            self.server: Server[Any] = context.module.server()
        if not isinstance(self.server, Server):
            method, made = type(context.module).__name__, type(self.server).__name__
            raise MethodError(f"{method}.server() must return a Server, got {made}")
        _check_verbs(self.server)
        self.server.seed = derive(seed, "server")
        self.client_class = type(context.module)
        if self.server.needs_public:
            self.server.public = context.public(f"the server of {type(context.module).__name__}")
        self._numbers = {client: number for number, client in enumerate(members(data))}
        self.clients = [
            (info_of if client in self._numbers else absent_info)(data, client, rounds)
            for client in range(data.num_clients)
        ]
        self.eligible = [info.client for info in self.clients if info.samples > 0]
        self._context, self._seed = context, seed
        self.chain = Chain()

    def bind(self, steps: Sequence[UplinkStep], **run: Any) -> None:
        """Bind the steps of the uplink to the run that declares them, one after another.

        Args:
            steps: The steps.
            run: Further fields of :class:`Start`.

        Raises:
            ValueError: A step does not suit the run, or does not come last.
        """
        self.chain.check_last(steps)
        self._start = Start(
            context=self._context,
            server=self.server,
            clients=tuple(self.clients[client] for client in self.eligible),
            seed=self._seed,
            first=self._first,
            broadcast=self._to_first,
            **run,
        )
        for step in steps:
            self.chain = self.chain.bound(step, self._start)
        self.chain.check_last(steps)

    def _first(self, client: int) -> Job:
        return self.job(self.start(), client, 1)

    def _to_first(self, state: ServerState) -> Broadcast:
        return cast(Broadcast, self.job(state, self.eligible[0], state.round + 1).broadcast)

    def check_chain(self, state: ServerState) -> None:
        """Refuse bound steps that do not suit each other; ``state`` is one before a round.

        Raises:
            ValueError: There are some.
        """
        if self.chain.steps:

            def made() -> Job:
                job = self.job(state, self.eligible[0], state.round + 1)
                return self.chain.job(job, state, uploads=True)

            self.chain.examine(self._start, made, lambda: self.begin(state, []).finish())

    def start(self) -> ServerState:
        """Return the server's state before the first round."""
        names, template = self._context.module.shared_names(), self._context.template
        with during("the server's init"):
            initial = clone({name: template[name] for name in names})
            state: ServerState = self.server.init(initial, self.members)
        return state

    @property
    def members(self) -> list[ClientInfo]:
        """The server's information on members, in the order of their numbers."""
        known = self.disclosed([self.clients[client] for client in self._numbers])
        return [replace(info, client=number) for number, info in enumerate(known)]

    def reported(self, state: ServerState) -> dict[str, dict[int, float]]:
        """Return ``client_report`` of a state, by the clients' numbers in the data."""
        clients = [*self._numbers]
        return {
            name: {clients[n]: value for n, value in values.items() if 0 <= n < len(clients)}
            for name, values in (state.client_report or {}).items()
        }

    def disclosed(self, clients: Sequence[ClientInfo]) -> list[ClientInfo]:
        """Return the information that the server may have on clients."""
        if not self.server.needs_label_counts:
            clients = [replace(info, label_counts=None) for info in clients]
        return [*map(self.chain.disclosed, clients)]

    def jobs(self, state: ServerState, clients: Sequence[int], number: int) -> list[Job]:
        """Return the jobs of several clients, without what they keep; see :meth:`job`."""
        if type(self.server).broadcasts is Server.broadcasts:
            return [self.job(state, client, number) for client in clients]
        with during(f"round {number}, the server's broadcasts"):
            numbers = [self._numbers[client] for client in clients]
            sent = self.server.broadcasts(state, numbers, number)
        pairs = zip(clients, sent, strict=True)
        return [self.job(state, client, number, sent=one) for client, one in pairs]

    def job(
        self,
        state: ServerState,
        client: int,
        number: int,
        kept: State | None = None,
        splits: tuple[Split, ...] = (),
        sent: Broadcast | None = None,
    ) -> Job:
        """Return a client's job in a round, from 1.

        Args:
            state: The server's state.
            client: The client.
            number: The round.
            kept: What the client keeps.
            splits: Those that are tested right after training.
            sent: What the server sends; ``None`` asks it.
        """
        if sent is None:
            with during(f"round {number}, the server's broadcast to client {client}"):
                sent = self.server.broadcast(state, self._numbers[client], number)
        return Job(
            info=replace(self.clients[client], round=number),
            kept=to(kept or {}, self._context.fabric.device),
            broadcast=self.chain.broadcast(sent, number) if self.chain.steps else sent,
            seed=derive(self._seed, "client", number, client),
            splits=splits,
        )

    @cached_property
    def sending(self) -> frozenset[int]:
        """The clients that should have something to send if they train.

        One with a single sample has not where batch norm lets it take no step (``Tally.idle``).
        """
        phases = [part for part in self._context.plan if isinstance(part, Phase)]
        coupled = [
            one.split == "train" and self._context.couples_samples(one.evals) for one in phases
        ]
        least = 2 if phases and all(coupled) else 1
        return frozenset(info.client for info in self.clients if info.samples >= least)

    def begin(self, state: ServerState, senders: Sequence[ClientInfo]) -> Round[ServerState]:
        """Return what takes the uploads of a round; ``senders`` are expected to send."""
        guarantee = self.chain.guarantee
        with aggregating(state):
            found = None if guarantee is None else guarantee.fold(state)
            if found is None:
                merges = bool(self.chain.merging)
                found = Together(self, state) if merges else self.folding(state, senders)
        found.holds = found.holds and self.chain.repeats
        return found

    def held(self, state: ServerState) -> tuple[int, str]:
        """Return the bytes of each upload that wait for the end of a round, and for whom."""
        module, entries = self._context.module, self._context.template
        extra = {name: entries[name] for name in module.extra if name in entries}
        upload = Upload(0, 1, {name: entries[name] for name in module.shared_names()}, extra)
        return self.begin(state, []).held(upload)

    def aggregated(self, state: ServerState, uploads: Sequence[Upload]) -> ServerState:
        """Return the server's state after a round, from all its uploads in ascending order."""
        senders = [ClientInfo(upload.client, upload.samples, None) for upload in uploads]
        found = self.begin(state, senders)
        with aggregating(state):
            for upload in uploads:
                found.add(upload)
            return found.finish()

    def folding(
        self, state: ServerState, senders: Sequence[ClientInfo | Upload]
    ) -> Folding[ServerState]:
        """Return the server's own folds of a round."""
        return Folding(self.server, state, senders, self._numbers)


def _check_verbs(server: Server[Any]) -> None:
    """Refuse a server that overrides what no run calls.

    Raises:
        MethodError: It does.
    """
    for name, instead in _REPLACED.items():
        own = getattr(type(server), name, None)
        if callable(own) and own is not getattr(Server, name, None):
            raise MethodError(
                f"no run calls {type(server).__name__}.{name}(): define {instead} in its place"
            )


class Together(Round[ServerState]):
    """A round whose uploads a step of the uplink merges, all at once."""

    holds = True

    def __init__(self, coordinator: Coordinator, state: ServerState) -> None:
        super().__init__()
        self._coordinator, self._state = coordinator, state
        self._uploads: list[Upload] = []

    def add(self, upload: Upload) -> None:
        """Hold an upload."""
        self._uploads.append(upload)

    def held(self, upload: Upload) -> tuple[int, str]:
        """Return the bytes of such an upload, which the steps hold."""
        return message_size(upload), " and ".join(self._coordinator.chain.merging)

    def finish(self, without: Collection[int] = ()) -> ServerState:
        """Return the state after the steps' merges, and the server's folds of what they leave."""
        uploads = [one for one in self._uploads if one.client not in without]
        return self._coordinator.chain.merge(self._state, uploads, self._aggregated)

    def _aggregated(self, state: ServerState, uploads: list[Upload]) -> ServerState:
        folding = self._coordinator.folding(state, uploads)
        for upload in uploads:
            folding.add(upload)
        return folding.finish()


def aggregating(state: ServerState) -> AbstractContextManager[None]:
    """Note in an error in this scope that it is from the aggregation after a state."""
    return during(f"round {state.round + 1}, the server's aggregation")


def uploads_of(results: Iterable[Result]) -> list[Upload]:
    """Return the uploads of the clients that have one."""
    return [result.upload for result in results if result.upload is not None]
