"""The server's half of the passage: how clients are to send, and what becomes of what arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pfl.core.noise import normals, streams_of
from pfl.core.seeds import derive
from pfl.core.server import Server, ServerState
from pfl.core.types import Broadcast, Sending, State, Upload
from pfl.passage.difference import bounded, wide

NOBODY = -1
"""Number of the client of an upload that stands for all."""


@dataclass(frozen=True)
class Passage:
    """The server's half of the passage of a run; it holds no state between rounds.

    Attributes:
        clip: Largest norm of a client's difference, C.
        sigma: Standard deviation of the noise in the sum, in units of the clip.
        expected: Mean number of clients that upload in a round, q N.
        extra: Entries in :attr:`Upload.extra` that are sent: a tensor of each one's shape.
        seed: Seed of the noise.
    """

    clip: float
    sigma: float
    expected: float
    extra: State
    seed: int

    def sending(self, state: ServerState) -> Sending:
        """Return how clients send in the round after a state."""
        return Sending(self.clip, tuple(self.extra))

    def aggregate(
        self,
        server: Server[Any],
        state: ServerState,
        uploads: Sequence[Upload],
        received: Broadcast,
    ) -> ServerState:
        """Return the state after a round, from the sum of all differences and noise.

        Args:
            server: The method's server.
            state: Its state before the round.
            uploads: The differences that arrived, in ascending order of clients; there may be none.
            received: What every client received.
        """
        number = state.round + 1
        shared, extra = _zeros(received.shared), _zeros(self.extra)
        for upload in uploads:
            change = bounded(upload, self.clip)
            for sums, values in ((shared, change.shared), (extra, change.extra)):
                for name, value in values.items():
                    sums[name] += value
        self._add_noise([*shared.values(), *extra.values()], number)
        mean = Upload(
            client=NOBODY,
            samples=1,
            shared={
                name: (wide(value) + shared[name] / self.expected).to(value.dtype)
                for name, value in received.shared.items()
            },
            extra={n: (extra[n] / self.expected).to(v.dtype) for n, v in self.extra.items()},
        )
        after: ServerState = server.merge_mean(state, mean, self.expected)
        return replace(after, round=number, client_report=None)

    def _add_noise(self, sums: Sequence[Tensor], number: int) -> None:
        """Add the noise of a round to sums, in place."""
        if not self.sigma:
            return
        stream = streams_of([derive(self.seed, "privacy", number)], sums[0].device)
        sizes = [value.numel() for value in sums]
        drawn = normals(stream, 0, 1, sum(sizes), sums[0].dtype)[0, 0]
        for value, start in zip(sums, accumulate(sizes, initial=0), strict=False):
            piece = drawn[start : start + value.numel()]
            value.add_(piece.view(value.shape), alpha=self.sigma * self.clip)


def _zeros(values: State) -> State:
    return {
        name: torch.zeros_like(value, dtype=wide(value).dtype) for name, value in values.items()
    }
