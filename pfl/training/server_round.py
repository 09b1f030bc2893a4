"""The server's part of a round: its clients' jobs, and the aggregation of their uploads.

The server sees only members, numbered from 0 in the order of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from pfl.core.data import absent_info, info_of, members
from pfl.core.failure import during
from pfl.core.seeds import derive
from pfl.core.server import Server, ServerState
from pfl.core.state import clone, to
from pfl.core.types import Broadcast, ClientInfo, ClientStep, Job, Result, Split, State, Upload
from pfl.training.context import Context
from pfl.training.declaration import MethodError
from pfl.training.gradients import GradientStep
from pfl.training.uplink import Start, UplinkStep, taken


class Coordinator:
    """Makes clients' jobs and aggregates their uploads; it has no state between rounds.

    Attributes:
        server: The method's server.
        client_class: The method.
        clients: Information on each client before the first round; empty if it is no member.
        eligible: The clients that have training data.
        uplink: The steps between clients and server; see :meth:`bind`.

    Args:
        context: The method with its initial values, the data and the device.
        rounds: Planned number of rounds.
        seed: Seed of all random choices of clients and server.

    Raises:
        MethodError: ``server()`` does not return a server; or it needs public data, and there are
            none.
    """

    uplink: tuple[UplinkStep, ...] = ()
    # The names of the steps that the run declares, as bound ones may have others.
    _named: Sequence[str] = ()

    def __init__(self, context: Context, rounds: int, seed: int) -> None:
        data = context.data
        with during("the method's server()"):
            self.server: Server[Any] = context.module.server()
        if not isinstance(self.server, Server):
            method, made = type(context.module).__name__, type(self.server).__name__
            raise MethodError(f"{method}.server() must return a Server, got {made}")
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

    def bind(self, steps: Sequence[UplinkStep], **run: Any) -> None:
        """Bind the steps of the uplink to the run that declares them, one after another.

        Args:
            steps: The steps.
            run: Further fields of :class:`Start`.

        Raises:
            ValueError: A step does not suit the run, or does not come last.
        """
        _check_last(steps, steps)
        self._named = [type(step).__name__ for step in steps]
        for step in steps:
            start = Start(
                context=self._context,
                server=self.server,
                clients=[self.clients[client] for client in self.eligible],
                seed=self._seed,
                first=lambda client: self.job(self.start(), client, 1),
                broadcast=lambda state: self._broadcast(state, self.eligible[0], state.round + 1),
                **run,
            )
            bound = step.bound(start)
            if not isinstance(bound, UplinkStep):
                one, made = type(step).__name__, type(bound).__name__
                raise ValueError(f"loop.uplink: {one}.bound() returns {made}, not a step")
            self.uplink = (*self.uplink, bound)
        _check_last(self.uplink, steps)

    def check_chain(self, state: ServerState) -> None:
        """Refuse bound steps that do not suit each other; ``state`` is one before a round.

        Raises:
            ValueError: There are some.
        """
        if self.uplink:
            made = self.job(state, self.eligible[0], state.round + 1)
            job = self.sending(made, state)
            for step in self.uplink:
                step.check_chain(self.uplink, job)

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
        for step in self.uplink:
            clients = [step.disclosed(info) for info in clients]
        return [*clients]

    def job(
        self,
        state: ServerState,
        client: int,
        number: int,
        kept: State | None = None,
        splits: tuple[Split, ...] = (),
    ) -> Job:
        """Return a client's job in a round, from 1; ``splits`` are tested right after training."""
        return Job(
            info=replace(self.clients[client], round=number),
            kept=to(kept or {}, self._context.fabric.device),
            broadcast=self._broadcast(state, client, number),
            seed=derive(self._seed, "client", number, client),
            splits=splits,
        )

    def sending(self, job: Job, state: ServerState, uploads: bool = True) -> Job:
        """Return a job for training with the steps that the client is to take.

        Raises:
            ValueError: A step of the uplink takes away what another gives the client to do, or two
                of them replace how it takes its gradients.
        """
        rules: list[str] = []
        for name, step in zip(self._named, self.uplink, strict=True):
            before, job = job.steps, step.job(job, state, uploads)
            _check_kept(before, job.steps, name)
            added = job.steps[len(before) :]
            rules += [name for own in added if isinstance(own, GradientStep)]
        if len(rules) > 1:
            raise ValueError(
                f"loop.uplink: {' and '.join(rules)} replace how a client takes its gradients, but "
                "only one of them can: leave the others out"
            )
        return job

    def received(self, job: Job, result: Result) -> Result:
        """Return a client's result as received by the server."""
        for step in reversed(self.uplink):
            result = taken(step, result, step.received(job, result))
        return result

    def shown(self, result: Result) -> Result:
        """Return a client's result as shown to callbacks."""
        for step in self.uplink:
            result = step.shown(result)
        return result

    def aggregate(
        self, state: ServerState, uploads: list[Upload], mean: State | None = None
    ) -> ServerState:
        """Return the server's state after a round.

        Args:
            state: The state before it.
            uploads: In ascending order of clients.
            mean: Their mean, if they were summed on arrival and have no values.
        """

        def aggregated(state: ServerState, uploads: list[Upload]) -> ServerState:
            sent = [replace(one, client=self._numbers[one.client]) for one in uploads]
            after: ServerState
            if mean is None:
                after = self.server.aggregate(state, sent)
            else:
                after = replace(self.server.with_mean(state, sent, mean), round=state.round + 1)
            return after

        merge: Callable[[ServerState, list[Upload]], ServerState] = aggregated
        for step in reversed(self.uplink):
            merge = partial(step.merge, aggregate=merge)
        with during(f"round {state.round + 1}, the server's aggregation"):
            return merge(state, uploads)

    def _broadcast(self, state: ServerState, client: int, number: int) -> Broadcast:
        with during(f"round {number}, the server's broadcast to client {client}"):
            broadcast = self.server.broadcast(state, self._numbers[client], number)
        for step in self.uplink:
            broadcast = step.broadcast(broadcast, number)
        return broadcast


def _check_last(steps: Sequence[UplinkStep], named: Sequence[UplinkStep]) -> None:
    """Refuse steps after one that must be the last; ``named`` has those that the run declares.

    Raises:
        ValueError: There are some.
    """
    for step, (one, after) in zip(steps, pairwise(named), strict=False):
        if step.last:
            name, other = type(one).__name__, type(after).__name__
            raise ValueError(f"loop.uplink: {name} must come last; name it after {other}")


def _check_kept(before: Sequence[ClientStep], after: Sequence[ClientStep], name: str) -> None:
    """Refuse a job that lacks some steps of the client that it had before a step of the uplink.

    Raises:
        ValueError: There are some.
    """
    for place, own in enumerate(before):
        if place >= len(after) or after[place] is not own:
            raise ValueError(
                f"loop.uplink: {name}.job() takes {type(own).__name__} away from the client's "
                "steps: it may only add its own after those of others"
            )


def uploads_of(results: Iterable[Result]) -> list[Upload]:
    """Return the uploads of the clients that have one."""
    return [result.upload for result in results if result.upload is not None]
