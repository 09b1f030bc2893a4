"""The server: pure functions on a frozen state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Literal, cast

import torch
from torch import Tensor
from typing_extensions import TypeVar

from pfl.core.data import ClientSplit
from pfl.core.state import weighted_mean
from pfl.core.types import Broadcast, ClientInfo, Patterns, State, Upload


@dataclass(frozen=True)
class ServerState:
    """The server's memory between rounds.

    A method that needs more memory subclasses this. Fields may have only tensors, plain values, and
    tuples, lists and dicts of them, so that a checkpoint needs no code for the method.

    Attributes:
        shared: Current values of the shared entries.
        round: Number of finished rounds.
        report: Numbers of the last aggregation that are logged as ``server/...``.
        client_report: Such numbers for each client (``{"weight": {client: value}}``), by its number
            at the server.
    """

    shared: State
    round: int = 0
    report: dict[str, float] | None = None
    client_report: dict[str, dict[int, float]] | None = None


StateT = TypeVar("StateT", bound=ServerState, default=ServerState)


@dataclass(eq=False)
class Server(Generic[StateT]):
    """A server that averages uploads by weight, and the base class of all others.

    The server sees only members, numbered from 0 in the order of the data. Clients that are held
    out have no such number and reach only :meth:`welcome`.

    A server with its own state names the type: ``class ScaffoldServer(Server[ScaffoldState])``. An
    instance has only hyperparameters; its methods are pure functions and do not modify their
    arguments.

    Attributes:
        reports: Names of the values in ``client_report``, with the captions of their pictures. A
            number that clients send (``ClientModule.extra``) is reported if it is named here.
        per_client: Whether ``shared`` of the state has a model for each client, along a leading
            axis.
        summed: Patterns of what a private run (``Privacy``) sends besides parameters: buffers
            that travel, and names in ``extra`` that :meth:`merge_mean` reads. Only what can be
            summed over clients belongs there.
        needs_public: Whether it works on public data (``data.public``).
        needs_label_counts: Whether :meth:`init` and :meth:`welcome` read the clients' label counts,
            which are ``None`` otherwise.
        seed: Seed of the server's own draws, derived from that of the run:
            ``generator(self.seed, "noise", state.round)``. Set before :meth:`init`.
        public: The public data, on the run's device, if it needs them; set before :meth:`init`.

    Args:
        weighting: ``samples`` weights uploads by the clients' training samples, ``uniform`` weights
            them equally.
        inherits: Two prefixes: entries that a newcomer receives under the first, it also keeps
            under the second; for instance ``("net.", "personal.")``.
    """

    reports: ClassVar[Mapping[str, str]] = {"weight": "aggregation weight"}
    per_client: ClassVar[bool] = False
    summed: ClassVar[Patterns] = ()
    needs_public: ClassVar[bool] = False
    needs_label_counts: ClassVar[bool] = False
    weighting: Literal["samples", "uniform"] = "samples"
    inherits: tuple[str, str] | None = field(default=None, kw_only=True)
    seed: int = field(default=0, init=False)
    public: ClientSplit = field(init=False, repr=False)

    def init(self, shared: State, clients: Sequence[ClientInfo]) -> StateT:
        """Return the state before the first round, from the common initial values.

        A server with its own type of state overrides this.

        Args:
            shared: Initial values of the shared entries.
            clients: The members, in the order of their numbers; some may have no training data.
        """
        return cast(StateT, ServerState(shared=shared))

    def broadcast(self, state: StateT, client: int, round: int) -> Broadcast:
        """Return the message to ``client`` at the start of ``round``."""
        return Broadcast(shared=state.shared)

    def welcome(
        self,
        state: StateT,
        info: ClientInfo,
        members: Sequence[ClientInfo],
        upload: Upload | None = None,
    ) -> tuple[Broadcast, State]:
        """Return what a client that joins a trained federation starts with; the state is unchanged.

        Args:
            state: The server's state.
            info: The newcomer, with the number of finished rounds; its own number is no member's.
            members: The clients that trained, as :meth:`init` got them.
            upload: What the newcomer sent after its introduction
                (:meth:`pfl.core.client.ClientModule.introduce`), which started from what this
                method returns without it; ``None`` if there is none.

        Returns:
            The message to the newcomer, and entries that it keeps; those that are not given have
            their initial values.
        """
        sent = self.broadcast(state, info.client, info.round)
        old, new = self.inherits or ("", "")
        kept = {n: v for n, v in sent.shared.items() if old and n.startswith(old)}
        return sent, {new + name.removeprefix(old): value for name, value in kept.items()}

    def weights(self, uploads: Sequence[Upload]) -> Tensor:
        """Return (len(uploads),) float64 weights that sum to one."""
        if self.weighting == "uniform":
            sizes = torch.ones(len(uploads), dtype=torch.float64)
        else:
            sizes = torch.tensor([upload.samples for upload in uploads], dtype=torch.float64)
        return sizes / sizes.sum()

    def aggregate(self, state: StateT, uploads: Sequence[Upload]) -> StateT:
        """Return the state after a round, from its uploads in ascending order of clients.

        It counts the round; :meth:`merge` does the rest. Without uploads, nothing else changes.
        """
        return replace(self.merge(state, uploads) if uploads else state, round=state.round + 1)

    def merge(self, state: StateT, uploads: Sequence[Upload]) -> StateT:
        """Return the state with the values that at least one upload gives."""
        weights = self.weights(uploads)
        mean = weighted_mean([upload.shared for upload in uploads], weights)
        return self.with_mean(state, uploads, mean)

    def with_mean(self, state: StateT, uploads: Sequence[Upload], mean: State) -> StateT:
        """Return the state with the mean of the uploads, whose own values may be dropped."""
        report = self.reported(uploads, weight=self.weights(uploads))
        return replace(state, shared=mean, client_report=report)

    def merge_mean(self, state: StateT, mean: Upload, count: float) -> StateT:
        """Return the state after a private round, in which no single upload is known.

        Called in place of :meth:`merge`. A server that overrides :meth:`merge`, :meth:`weights` or
        :meth:`aggregate` takes part in private runs (``Privacy``) if it overrides this too.

        Args:
            state: The state before the round.
            mean: An estimate of the mean of the uploads, all of which count equally; its ``extra``
                has only what ``summed`` names.
            count: The expected number of uploads, q N.
        """
        return self.merge(state, [mean])

    def reported(self, uploads: Sequence[Upload], **values: Tensor) -> dict[str, dict[int, float]]:
        """Return numbers for each uploading client: some values, and what ``reports`` names.

        Args:
            uploads: The uploads of a round, at least one.
            values: (len(uploads),) each, by name.
        """
        sent = {name: received(uploads, name) for name in self.reports if name in uploads[0].extra}
        return {
            name: {u.client: float(value) for u, value in zip(uploads, row, strict=True)}
            for name, row in (values | sent).items()
        }


def received(uploads: Sequence[Upload], name: str) -> Tensor:
    """Return (len(uploads), ...) values of ``extra``, in the order of the uploads' weights."""
    return torch.stack([upload.extra[name] for upload in uploads])
