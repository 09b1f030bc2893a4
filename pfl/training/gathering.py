"""The uploads of a round, folded by the server as they arrive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pfl.core.failure import during
from pfl.core.server import ServerState
from pfl.core.state import message_size
from pfl.core.types import ClientInfo, Result, Upload
from pfl.training.server_round import Coordinator


class Gathering:
    """Takes the uploads of a round, in ascending order of clients.

    Each is handed to the server's folds (:meth:`pfl.core.server.Server.begin`), or to what a
    guarantee has in their place, and its values are dropped: memory does not grow with the cohort.
    A client from which nothing arrives is not folded.

    Attributes:
        uploads: The uploads that arrived, without their values.
        unheard: Bytes of further ones that a step of the server withheld.
        refused: Why the server does not take what clients sent, by client.

    Args:
        coordinator: The server's side.
        state: The server's state before the round.
        senders: The clients that are to send; they ascend.
    """

    def __init__(
        self, coordinator: Coordinator, state: ServerState, senders: Sequence[ClientInfo]
    ) -> None:
        self._coordinator, self._doing = coordinator, _doing(state)
        self._senders = {info.client for info in senders}
        self.uploads: list[Upload] = []
        self.unheard = 0
        self.refused: dict[int, Exception] = {}
        with during(self._doing):
            self._round = coordinator.begin(state, [*filter(coordinator.expects, senders)])

    def take(self, result: Result) -> Result:
        """Take the upload of a result; return the result without the upload's values."""
        upload = result.upload
        if result.client not in self._senders:
            return result
        if upload is None:
            self.unheard += result.unheard
            return result
        # Only the number of bytes remains of the values.
        told = replace(upload, shared={}, extra={}, encoded=message_size(upload))
        self.uploads.append(told)
        try:
            self._round.add(upload)
        except Exception as error:
            self.refused[result.client] = error
        return replace(result, upload=told)

    def finish(self, without: Collection[int] = ()) -> ServerState:
        """Return the server's state after the round.

        Args:
            without: Clients that are left out, if the uploads are held.
        """
        with during(self._doing):
            return self._round.finish(without)

    @property
    def can_leave_out(self) -> bool:
        """Whether the server can aggregate once more without some clients.

        It cannot if single uploads are gone, or if a step of the uplink forbids it.
        """
        return self._round.holds and self._coordinator.chain.repeats

    def leave_out(self, clients: Collection[int]) -> None:
        """Count the uploads of some clients no longer."""
        self.uploads = [one for one in self.uploads if one.client not in clients]


def aggregated(
    coordinator: Coordinator, state: ServerState, uploads: Iterable[Upload]
) -> ServerState:
    """Return the server's state after a round, from all its uploads in ascending order."""
    sent = [*uploads]
    infos = [ClientInfo(upload.client, upload.samples, None) for upload in sent]
    with during(_doing(state)):
        found = coordinator.begin(state, infos)
        for upload in sent:
            found.add(upload)
        return found.finish()


def _doing(state: ServerState) -> str:
    return f"round {state.round + 1}, the server's aggregation"
