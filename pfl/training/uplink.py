"""The uplink: a chain of steps between a client's round and the server, which a run declares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from pfl.core.data import FederatedData
from pfl.core.server import Round, Server, ServerState
from pfl.core.state import digest
from pfl.core.types import Broadcast, ClientInfo, ClientStep, Cohort, Job, Result, Upload

if TYPE_CHECKING:
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
        guarantees: The guarantees that steps have become so far; a step that makes one enters it.
    """

    context: Context
    data: FederatedData
    server: Server[Any]
    clients: Sequence[ClientInfo]
    sampler: Callable[[Sequence[int], torch.Generator, int], Cohort]
    seed: int
    first: Callable[[int], Job]
    broadcast: Callable[[ServerState], Broadcast]
    guarantees: list[Guarantee] = field(default_factory=list)


class UplinkStep(ClientStep, ABC):
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


class Guarantee(UplinkStep):
    """A step that guarantees something of what a run releases, such as differential privacy.

    The run has at most one. What it says of rounds rests on what these rounds show: on a trial
    before the first one, and on the witness of each round after it.

    Attributes:
        covers: What leaves a client (``uploads``) or what the server makes of all uploads
            (``server``): others may not change it.
    """

    covers: ClassVar[Literal["uploads", "server"]]

    @abstractmethod
    def accepted(self, start: Start) -> None:
        """Begin to act in a run, as a step of its uplink itself.

        Raises:
            ValueError: The step is not what a run can rely on, or is not that of this run.
        """

    @abstractmethod
    def tried(self, start: Start, job: Job, merged: Callable[[], ServerState]) -> None:
        """Try what is guaranteed, before the first round.

        Args:
            start: The facts of the run.
            job: A client's job for training, as all of them make it.
            merged: Returns the server's state after a round without uploads.

        Raises:
            ValueError: The trial does not show it.
        """

    def fold(self, state: ServerState) -> Round[ServerState] | None:
        """Return what takes the uploads of a round in the server's place; ``None`` if nothing does.

        Args:
            state: The server's state before the round.
        """
        return None

    @abstractmethod
    def witnessed(self, results: Mapping[int, Result], after: ServerState) -> dict[str, float]:
        """Return the columns by which a round shows what is guaranteed.

        Args:
            results: Those that count, by client.
            after: The server's state after the round.

        Raises:
            ValueError: It does not show it.
        """

    @abstractmethod
    def stated(
        self, history: Sequence[Mapping[str, float]], planned: int, rounds: int
    ) -> dict[str, str]:
        """Return what is guaranteed, as lines by topic.

        Args:
            history: The rounds that were played, with the columns of :meth:`witnessed`.
            planned: The planned number of rounds.
            rounds: How many of them are stated; those that were not played count as the trial.

        Raises:
            ValueError: A round does not show what is guaranteed.
        """


def sent(steps: Sequence[ClientStep], job: Job, result: Result, final: bool) -> Result:
    """Return a client's result after its steps.

    Args:
        steps: The steps.
        job: The client's job.
        result: What the client would send.
        final: Whether only a codec may change the upload, and steps see no loss or score.

    Raises:
        ValueError: Another one changes it.
    """
    told = result
    if final:
        result = replace(result, train={}, logged={}, scores={})
    for step in steps:
        before, name = result, type(step).__name__
        marks = _marks(before.upload) if final else ()
        result = taken(name, before, step.sent(job, before))
        if final and not encodes(step):
            same_upload(name, "sent", before, result)
            if marks != _marks(before.upload):
                raise ValueError(_changes(name, "sent"))
    # What a client reports beside its messages is no concern of the steps.
    return replace(
        result, **{item: getattr(told, item) for item in ("train", "logged", "scores", "drawn")}
    )


def encodes(step: ClientStep) -> bool:
    """Return ``True`` if a client's step encodes messages."""
    return type(step).unpacked is not ClientStep.unpacked


def same_upload(name: str, verb: str, before: Result, after: Result) -> None:
    """Refuse a step that changes an upload; it may withhold it.

    Raises:
        ValueError: It changes it.
    """
    one, other = before.upload, after.upload
    if other is None or other is one:
        return
    if one is None or (one.client, one.samples, *_marks(one)) != (
        *(other.client, other.samples),
        *_marks(other),
    ):
        raise ValueError(_changes(name, verb))


def _marks(upload: Upload | None) -> tuple[str, ...]:
    return () if upload is None else (digest(upload.shared), digest(upload.extra))


def _changes(name: str, verb: str) -> str:
    return (
        f"loop.uplink: {name}.{verb}() changes an upload whose noise is accounted for: only a "
        "codec may, and any step may withhold it"
    )


def taken(name: str, before: Result, after: Result) -> Result:
    """Return a result after a step, with the step's name if it withheld the upload.

    Raises:
        TypeError: The step returned something else.
        ValueError: It is the result of another client.
    """
    if not isinstance(after, Result):
        raise TypeError(
            f"{name} of loop.uplink returns {type(after).__name__} in place of a Result"
        )
    whose = {after.client, *(() if after.upload is None else (after.upload.client,))}
    if whose != {before.client}:
        raise ValueError(
            f"{name} of loop.uplink returns a result of client {max(whose - {before.client})} for "
            f"one of client {before.client}"
        )
    if (before.upload is None) == (after.upload is None):
        return after
    return replace(after, withheld=name if after.upload is None else None)
