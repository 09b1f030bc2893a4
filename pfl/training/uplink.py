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
    """The facts of a run that a step may use before the first round.

    Attributes:
        context: The method with its initial values, and the device.
        data: The federation's data.
        server: The method's server.
        clients: Information on the clients that have training data.
        sampler: Draws the clients of a round; see :class:`pfl.federation.sampling.Sampler`.
        seed: Seed of every random choice.
        first: Returns a client's job of the first round, after the steps before this one.
        broadcast: Returns what clients receive in the round after a state of the server.
    """

    context: Context
    data: FederatedData
    server: Server[Any]
    clients: Sequence[ClientInfo]
    sampler: Callable[[Sequence[int], torch.Generator, int], Cohort]
    seed: int
    first: Callable[[int], Job]
    broadcast: Callable[[ServerState], Broadcast]


class UplinkStep(ClientStep):
    """A step of the uplink; by default it changes nothing.

    A subclass is a frozen dataclass and overrides the methods in which it acts: :meth:`job` and
    :meth:`broadcast` before a message leaves the server, ``sent`` at the client after its round,
    :meth:`received` and :meth:`merge` at the server. The step travels with the job, so ``sent``
    reads only the step's own fields, the job and the result.

    Steps act in the order in which the run declares them, and on arrival in the reverse order. The
    merge of the first step encloses those of the others.

    Attributes:
        last: Whether no step may follow, because it does not send entries of the method.

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

    def bound(self, start: Start) -> UplinkStep:
        """Return this step, bound to one run with its method, server and clients.

        Raises:
            ValueError: The step does not suit the run.
        """
        return self

    def check_chain(self, chain: Sequence[UplinkStep], job: Job) -> None:
        """Refuse other steps that do not suit this one; called once all steps are bound.

        Args:
            chain: All bound steps, in order; what they declare may differ from what they are.
            job: A client's job for training, as all of them make it.

        Raises:
            ValueError: There is such a step.
        """

    def disclosed(self, info: ClientInfo) -> ClientInfo:
        """Return the information that the server may have on a client."""
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
        """Return a client's result as the server uses it, on arrival.

        A result without its upload withholds it.
        """
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
            uploads: The uploads that arrived, in ascending order of clients; perhaps none.
            aggregate: The next step's merge; for the last step, the server's.
        """
        return aggregate(state, uploads)

    def shown(self, result: Result) -> Result:
        """Return a client's result as shown to callbacks."""
        return result

    def max_rounds(self, rounds: int) -> int:
        """Return how many of the planned rounds may run.

        Raises:
            ValueError: Not even one may.
        """
        return rounds

    def described(self, planned: int, rounds: int) -> dict[str, str]:
        """Return lines for the run's header, by topic.

        Args:
            planned: The planned number of rounds.
            rounds: How many of them will run.
        """
        return {}


def taken(step: ClientStep, before: Result, after: Result) -> Result:
    """Return a result after a step, with the step's name if it withheld the upload.

    Raises:
        TypeError: The step returned something else.
    """
    name = type(step).__name__
    if not isinstance(after, Result):
        raise TypeError(
            f"{name} of loop.uplink returns {type(after).__name__} in place of a Result"
        )
    if (before.upload is None) == (after.upload is None):
        return after
    return replace(after, withheld=name if after.upload is None else None)
