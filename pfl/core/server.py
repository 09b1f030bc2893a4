"""The server: pure functions on a frozen state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, Generic, Literal, cast, final

import torch
from torch import Tensor
from typing_extensions import TypeVar

from pfl.core.data import ClientSplit
from pfl.core.folds import EVERYTHING, Folded, Folds, Mean, Uploads
from pfl.core.state import message_size
from pfl.core.types import Broadcast, ClientInfo, Patterns, Result, State, Upload


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
            that travel, and names in ``extra`` that a fold sums. Only what can be summed over
            clients belongs there.
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

    def broadcasts(self, state: StateT, clients: Sequence[int], round: int) -> list[Broadcast]:
        """Return the messages to several clients; overridden where they are faster made at once."""
        return [self.broadcast(state, client, round) for client in clients]

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

    def weight(self, upload: Upload) -> float:
        """Return the weight of an upload in the mean; it is divided by the sum of all."""
        return float(upload.samples) if self.weighting == "samples" else 1.0

    def shares(self, uploads: Sequence[Upload]) -> Tensor:
        """Return the (len(uploads),) float64 weights of uploads, which sum to one."""
        weights = torch.tensor([*map(self.weight, uploads)], dtype=torch.float64)
        return weights / weights.sum()

    def begin(self, state: StateT, senders: Sequence[ClientInfo]) -> Folds:
        """Declare what becomes of a round's uploads as they arrive: folds, by name.

        By default the weighted mean of ``shared``, as ``mean``. The folds are new ones in each
        round. A server that cannot do without single uploads says so by
        :class:`~pfl.core.folds.Uploads`, and takes no part in private runs (``Privacy``).

        Args:
            state: The state before the round.
            senders: Those that are expected to send, in ascending order; some may not.
        """
        return {"mean": self.mean_of(senders)}

    def mean_of(self, senders: Sequence[ClientInfo], names: Patterns = EVERYTHING) -> Mean:
        """Return a fold: the weighted mean of entries of ``shared``, by patterns of their names."""
        sizes = sum(one.samples for one in senders)
        planned = sizes if self.weighting == "samples" else len(senders)
        return Mean(self.weight, names, planned or 1)

    def finish(self, state: StateT, folded: Folded) -> StateT:
        """Return the state after a round in which at least one upload arrived.

        By default it has the entries of the mean, and :meth:`reported` numbers of clients.

        Args:
            state: The state before the round.
            folded: The values of what :meth:`begin` declared.
        """
        return replace(state, shared=folded.mean, client_report=self.reported(folded))

    @final
    def aggregate(self, state: StateT, uploads: Sequence[Upload]) -> StateT:
        """Return the state after a round, given all its uploads in ascending order of clients."""
        folding = Folding(self, state, uploads, {one.client: one.client for one in uploads})
        for upload in uploads:
            folding.add(upload)
        return folding.finish()

    def reported(self, folded: Folded, **values: Tensor) -> dict[str, dict[int, float]] | None:
        """Return numbers for each uploading client: its weight, and what ``reports`` names.

        Args:
            folded: The round; of a private one nothing is reported.
            values: (len(uploads),) further numbers, by name.
        """
        uploads = folded.uploads
        if not uploads:
            return None
        if "weight" in self.reports:
            values = {"weight": folded.shares} | values
        sent = {name: received(uploads, name) for name in self.reports if name in uploads[0].extra}
        return {
            name: {u.client: value for u, value in zip(uploads, row.tolist(), strict=True)}
            for name, row in (values | sent).items()
        }


class Round(ABC, Generic[StateT]):
    """A round at the server: it takes the uploads, in ascending order of clients.

    Memory does not grow with the cohort, as the values of an upload are dropped once they are
    taken, unless they are held (:meth:`held`). A client from which nothing arrives is not there.

    Attributes:
        holds: Whether the round can finish without some of the uploads.
        arrived: The uploads that were taken, without their values.
        unheard: Bytes of further ones that a step of the server withheld.
        refused: Why the server does not take what clients sent, by client.
    """

    holds: bool = False

    def __init__(self) -> None:
        self.arrived: list[Upload] = []
        self.unheard = 0
        self.refused: dict[int, Exception] = {}

    def take(self, result: Result) -> Result:
        """Take the upload of a result; return the result without the upload's values."""
        if (upload := result.upload) is None:
            self.unheard += result.unheard
            return result
        # Only the number of bytes remains of the values.
        told = replace(upload, shared={}, extra={}, encoded=message_size(upload))
        self.arrived.append(told)
        try:
            self.add(upload)
        except Exception as error:
            self.refused[result.client] = error
        return replace(result, upload=told)

    def leave_out(self, clients: Collection[int]) -> None:
        """Count the uploads of some clients no longer."""
        self.arrived = [one for one in self.arrived if one.client not in clients]

    @abstractmethod
    def add(self, upload: Upload) -> None:
        """Add an upload.

        Raises:
            Exception: It cannot be used; nothing of it was added.
        """

    def held(self, upload: Upload) -> tuple[int, str]:
        """Return the bytes of such an upload that wait for the end of the round, and for whom."""
        return 0, ""

    @abstractmethod
    def finish(self, without: Collection[int] = ()) -> StateT:
        """Return the server's state after the round, as if some clients had sent nothing."""


class Folding(Round[StateT]):
    """A round of a server: its folds, and the uploads that they have taken.

    Attributes:
        folds: What the server declared.

    Args:
        server: The server.
        state: Its state before the round.
        senders: Those that are expected to send.
        numbers: The number of each client at the server.
    """

    def __init__(
        self,
        server: Server[StateT],
        state: StateT,
        senders: Sequence[ClientInfo | Upload] = (),
        numbers: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._server, self._state, self._numbers = server, state, numbers
        infos = [ClientInfo(numbers[one.client], one.samples, None) for one in senders]
        self.folds = server.begin(state, infos)
        self.holds = all(isinstance(fold, Uploads) for fold in self.folds.values())
        # By the server's numbers, with no values but those that it reports.
        self._told: list[Upload] = []
        self._weights: list[float] = []

    def add(self, upload: Upload) -> None:
        """Hand an upload to all folds."""
        upload = replace(upload, client=self._numbers[upload.client])
        weight = self._server.weight(upload)
        for fold in self.folds.values():
            fold.add(upload)
        told = {n: value for n, value in upload.extra.items() if n in self._server.reports}
        self._told.append(replace(upload, shared={}, extra=told))
        self._weights.append(weight)

    def held(self, upload: Upload) -> tuple[int, str]:
        """Return the bytes of such an upload that wait for the end of the round, and for whom."""
        held = {name: one.held(upload) for name, one in self.folds.items()}
        whose = ", ".join(name for name, size in held.items() if size)
        return sum(held.values()), f"{type(self._server).__name__} ({whose})"

    def finish(self, without: Collection[int] = ()) -> StateT:
        """Return the state after the round.

        Args:
            without: Clients that are left out, if the folds hold all uploads.
        """
        left_out = {self._numbers[client] for client in without}
        kept = [n for n, one in enumerate(self._told) if one.client not in left_out]
        after = self._state
        if kept:
            weights = torch.tensor([self._weights[n] for n in kept], dtype=torch.float64)
            values = {
                name: fold.without(left_out) if isinstance(fold, Uploads) else fold.value()
                for name, fold in self.folds.items()
            }
            uploads = [self._told[n] for n in kept]
            folded = Folded(uploads, weights / weights.sum(), len(uploads), values)
            after = self._server.finish(after, folded)
        return replace(after, round=self._state.round + 1)

    def finish_with(self, mean: Upload, count: float) -> StateT:
        """Return the state after a private round, of which only a mean of uploads is known.

        Args:
            mean: An estimate of the mean, all of which count equally; its ``extra`` has only what
                ``summed`` names.
            count: The expected number of uploads, q N.
        """
        values = {name: fold.of_mean(mean, count) for name, fold in self.folds.items()}
        folded = Folded((), torch.zeros(0, dtype=torch.float64), count, values)
        after = self._server.finish(self._state, folded)
        return replace(after, round=self._state.round + 1)


def received(uploads: Sequence[Upload], name: str) -> Tensor:
    """Return (len(uploads), ...) values of ``extra``, in the order of the uploads' weights."""
    return torch.stack([upload.extra[name] for upload in uploads])
