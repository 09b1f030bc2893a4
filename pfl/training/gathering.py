"""The uploads of a round, as they arrive: all of them are kept, or only their sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pfl.core.client import ClientModule
from pfl.core.failure import clients_text
from pfl.core.server import Server, ServerState
from pfl.core.state import RunningMean, nbytes
from pfl.core.types import ClientInfo, ClientStep, Result, Upload
from pfl.training.server_round import Coordinator
from pfl.training.uplink import UplinkStep


class Gathering:
    """Takes the uploads of a round, in ascending order of clients.

    Where the server only averages what all clients send, and no step of the uplink may withhold an
    upload, each upload is added to the mean when it arrives, and its values are dropped: memory
    does not grow with the cohort. The bits are those of the mean of all uploads. Otherwise the
    uploads are kept until the round is over.

    Attributes:
        uploads: The uploads that arrived, without values if these are in the mean.

    Args:
        coordinator: Aggregates the uploads.
        senders: The clients that will send an upload; they ascend.
        sums: Whether uploads may be summed: :func:`averages`, and a sender without a result ends
            the run.
    """

    def __init__(self, coordinator: Coordinator, senders: Sequence[ClientInfo], sums: bool) -> None:
        self._coordinator = coordinator
        self._senders = {info.client for info in senders}
        self.uploads: list[Upload] = []
        self._mean: RunningMean | None = None
        # A client with one sample may be idle and then sends nothing; see ``Tally.idle``.
        if sums and senders and all(info.samples > 1 for info in senders):
            self._mean = RunningMean()
            empty = [Upload(info.client, info.samples, {}) for info in senders]
            shares = coordinator.server.weights(empty).tolist()
            self._shares = dict(zip(sorted(self._senders), shares, strict=True))

    def take(self, result: Result) -> Result:
        """Take the upload of a result; return the result, without values that are in the mean."""
        upload = result.upload
        if upload is None or result.client not in self._senders:
            return result
        if self._mean is not None:
            self._mean.add(upload.shared, self._shares[upload.client])
            # Only the number of bytes remains of the values.
            size = nbytes(upload.shared) + nbytes(upload.extra)
            upload = replace(upload, shared={}, encoded=upload.encoded or size)
        self.uploads.append(upload)
        return replace(result, upload=upload)

    def aggregated(self, state: ServerState) -> ServerState:
        """Return the server's state after the round."""
        mean = None if self._mean is None else self._mean.value()
        missing = self._senders - {upload.client for upload in self.uploads}
        if mean is not None and missing:
            raise RuntimeError(
                f"the uploads of {clients_text(sorted(missing))} are missing in a mean that was "
                "taken while they arrived: a step of loop.uplink that declares withholds = False "
                "withheld them"
            )
        return self._coordinator.aggregate(state, self.uploads, mean)


def averages(coordinator: Coordinator) -> bool:
    """Return ``True`` if the server's next state depends only on the mean of the uploads."""
    server, client = type(coordinator.server), coordinator.client_class
    return (
        server.aggregate is Server.aggregate
        and server.merge is Server.merge
        and server.weights is Server.weights
        and client.upload is ClientModule.upload
        and all(type(step).merge is UplinkStep.merge for step in coordinator.uplink)
        and not any(map(_may_withhold, coordinator.uplink))
    )


def _may_withhold(step: UplinkStep) -> bool:
    kind = type(step)
    places = (kind.sent, ClientStep.sent), (kind.received, UplinkStep.received)
    acts = any(own is not base for own, base in (*places, (kind.job, UplinkStep.job)))
    return acts and step.withholds
