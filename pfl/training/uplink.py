"""The uplink: a chain of steps between a client's round and the server, which a run declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from pfl.core.data import FederatedData
from pfl.core.server import Server, ServerState
from pfl.core.types import Broadcast, ClientInfo, ClientStep, Cohort, Job, Result, Upload
from pfl.training.context import Context


@dataclass(frozen=True)
class Start:
    """What a step may know of a run before its first round.

    Attributes:
        context: The method with its initial values, and the device.
        data: The federation's data.
        server: The method's server.
        clients: What is known of the clients that have training data.
        sampler: Draws the clients of a round; see :class:`pfl.federation.sampling.Sampler`.
        seed: Seed of every random choice.
        simulates: Whether the clients are simulated, and not real ones at their sites.
        steps: All steps that the run declares.
        first: Returns a client's job of the first round, after the steps before this one.
        broadcast: Returns what clients receive in the round after a state of the server.
    """

    context: Context
    data: FederatedData
    server: Server[Any]
    clients: Sequence[ClientInfo]
    sampler: Callable[[Sequence[int], torch.Generator, int], Cohort]
    seed: int
    simulates: bool
    steps: Sequence[UplinkStep]
    first: Callable[[int], Job]
    broadcast: Callable[[ServerState], Broadcast]


class UplinkStep(ClientStep):
    """A step of the uplink; by default it changes nothing.

    A subclass is a frozen dataclass and overrides the places in which it acts: :meth:`job` and
    :meth:`broadcast` before a message leaves the server, ``sent`` where the client is, after its
    round, :meth:`received` and :meth:`merge` at the server. What acts at the client travels with
    the job, so that ``sent`` reads only the step's own fields, the job and the result.

    Steps act in the order in which the run declares them, and on arrival in the reverse order. The
    merge of the first step contains those of the others.

    Attributes:
        last: Whether no step may follow, as what it sends are no entries of the method.
        remembers: Whether clients keep something for it from round to round.

    Example::

        @dataclass(frozen=True)
        class SignFlip(UplinkStep):
            clients: tuple[int, ...]

            def sent(self, job, result):
                if result.upload is None or job.info.client not in self.clients:
                    return result
                flipped = {name: -value for name, value in result.upload.shared.items()}
                return replace(result, upload=replace(result.upload, shared=flipped))
    """

    last: ClassVar[bool] = False

    @property
    def remembers(self) -> bool:
        """Whether clients keep something for it from round to round."""
        return False

    def bound(self, start: Start) -> UplinkStep:
        """Return this step for one run, which may know the method, its server and its clients.

        Raises:
            ValueError: The step does not suit the run.
        """
        return self

    def disclosed(self, info: ClientInfo) -> ClientInfo:
        """Return what the server may know of a client."""
        return info

    def broadcast(self, message: Broadcast, number: int) -> Broadcast:
        """Return a message from the server as clients receive it in a round, from 1."""
        return message

    def job(self, job: Job, state: ServerState, uploads: bool) -> Job:
        """Return a client's job for training, with the steps that the client is to take.

        Args:
            job: The job, with the steps before this one.
            state: The server's state before the round.
            uploads: Whether what the client sends will count.
        """
        acts = type(self).sent is not ClientStep.sent
        return replace(job, steps=(*job.steps, self)) if acts else job

    def received(self, job: Job, result: Result) -> Result:
        """Return a client's result as the server takes it, when it has arrived."""
        return result

    def merge(
        self,
        state: ServerState,
        uploads: list[Upload],
        aggregate: Callable[[ServerState, list[Upload]], ServerState],
    ) -> ServerState:
        """Return the server's state after a round.

        Args:
            state: The state before the round.
            uploads: What has arrived, in ascending order of clients.
            aggregate: The next step's merge; behind the last step, the server's own.
        """
        return aggregate(state, uploads)

    def shown(self, result: Result) -> Result:
        """Return a client's result as callbacks may see it."""
        return result

    def max_rounds(self, rounds: int) -> int:
        """Return how many of the planned rounds may be played.

        Raises:
            ValueError: Not a single one.
        """
        return rounds

    def described(self, planned: int, rounds: int) -> dict[str, str]:
        """Return lines for the run's header, by topic.

        Args:
            planned: The planned number of rounds.
            rounds: How many of them will be played.
        """
        return {}
