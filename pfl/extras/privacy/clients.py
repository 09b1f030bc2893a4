"""User-level privacy: the epsilon, the clip and the noisy mean of uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pfl.core.devices import wide
from pfl.core.seeds import derive
from pfl.core.server import Server, ServerState
from pfl.core.state import finite
from pfl.core.types import NO_CLIENT, Broadcast, ClientInfo, Job, Result, State, Upload
from pfl.extras.privacy import accountant, draws
from pfl.extras.privacy.account import Account
from pfl.extras.privacy.clip import WHOLE, Clip
from pfl.extras.privacy.difference import bounded
from pfl.extras.privacy.terms import Terms

# Values that the server reports: the clip, and the noisy share of unclipped differences.
_CLIP, _SHARE = "clip", "whole"


@dataclass(frozen=True)
class ClientAccount(Account):
    """The account of a run that keeps whole clients private, without state between rounds.

    Attributes:
        privacy: The settings.
        rate: Probability q with which a client uploads.
        clients: Number N of clients with training data. It is assumed to be public: neighbouring
            federations have the same denominator.
        extra: Entries in :attr:`Upload.extra` that are sent: a template tensor of each.
        seed: Seed of the noise.
        server: The method's server.
        received_by: Function from a state to the message that clients receive next.
    """

    privacy: Terms
    rate: float
    clients: int
    extra: State
    seed: int
    server: Server[Any]
    received_by: Callable[[ServerState], Broadcast]

    meaning = (
        "client j's model is private with respect to every other client; an export of it is a "
        "release of j's data"
    )
    unit = "client"
    lower = "the probability of the sampler"

    @property
    def expected(self) -> float:
        """The expected number of uploading clients in a round, q N: the denominator of means."""
        return self.rate * self.clients

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of a number of rounds."""
        return accountant.epsilon(self.rate, self.privacy.sigma, rounds, self.privacy.delta)

    @property
    def mechanism(self) -> str:
        """The mechanism in words."""
        privacy = self.privacy
        clip = f"clip {privacy.clip:g}" + (", then adaptive" if privacy.adaptive else "")
        return (
            f"{clip}; sigma {privacy.sigma:g}; Poisson cohorts, rate {self.rate:g} of "
            f"{self.clients} clients; all count equally, over {self.expected:g}"
        )

    def disclosed(self, info: ClientInfo) -> ClientInfo:
        """Hide sizes from the server."""
        return replace(info, samples=min(1, info.samples), label_counts=None)

    def clip(self, state: ServerState) -> float:
        """Return the clip of the round after a state.

        An adaptive clip is a function of the last round's reported values.
        """
        last = state.report or {}
        if not self.privacy.adaptive or _SHARE not in last:
            return self.privacy.clip
        return self.privacy.next_clip(last[_CLIP], last[_SHARE])

    def step(self, state: ServerState) -> Clip:
        """Return the client step of the round after a state."""
        return Clip(self.clip(state), tuple(self.extra), tells_whole=self.privacy.adaptive)

    def job(self, job: Job, state: ServerState, uploads: bool) -> Job:
        """Add the clip to a client's job."""
        return replace(job, steps=(*job.steps, self.step(state)))

    def received(self, job: Job, result: Result) -> Result:
        """Return a result, marked as not counting if a difference is not finite."""
        if result.upload is None or finite(result.upload.extra):
            return result
        return replace(result, finite=False)

    def shown(self, result: Result) -> Result:
        """Hide the upload: a private client's message is for the sum alone and is not a model."""
        return replace(result, upload=None)

    def merge(
        self,
        state: ServerState,
        uploads: list[Upload],
        aggregate: Callable[[ServerState, list[Upload]], ServerState],
    ) -> ServerState:
        """Return the state after a round, from the noisy sum of all differences.

        The uploads are the received differences in ascending order of clients, perhaps none. All
        clients received the same message.
        """
        received = self.received_by(state)
        number, clip = state.round + 1, self.clip(state)
        shared, extra = _zeros(received.shared), _zeros(self.extra)
        whole = torch.zeros((), dtype=torch.float64)
        for upload in uploads:
            vote = upload.extra.get(WHOLE, torch.zeros(())).sign() / 2
            # Clients of other versions may send something else.
            change = bounded(_of_names(upload, shared, extra), clip)
            for sums, values in ((shared, change.shared), (extra, change.extra)):
                for name, value in values.items():
                    sums[name] += value
            whole = whole + vote.to(whole)
        if self.privacy.sigma:
            deviation = self.privacy.sum_deviation(self.expected) * clip
            self._add_noise([*shared.values(), *extra.values()], deviation, "sum", number)
        mean = Upload(
            client=NO_CLIENT,
            samples=1,
            shared={
                name: (wide(value) + shared[name] / self.expected).to(value.dtype)
                for name, value in received.shared.items()
            },
            extra={n: (extra[n] / self.expected).to(v.dtype) for n, v in self.extra.items()},
        )
        after: ServerState = self.server.merge_mean(state, mean, self.expected)
        report = {**(after.report or {}), _CLIP: clip}
        if self.privacy.adaptive:
            if self.privacy.sigma:
                deviation = self.privacy.count_deviation(self.expected)
                self._add_noise([whole], deviation, "count", number)
            report[_SHARE] = float(whole) / self.expected + 0.5
        return replace(after, round=number, report=report, client_report=None)

    def _add_noise(self, sums: Sequence[Tensor], deviation: float, name: str, number: int) -> None:
        """Add a round's noise to sums, in place."""
        sizes, first = [value.numel() for value in sums], sums[0]
        place = (sum(sizes), first.device, first.dtype)
        if self.privacy.noise == "system":
            drawn = draws.from_system(*place)
        else:
            drawn = draws.from_seed(derive(self.seed, name, number), *place)
        for value, start in zip(sums, accumulate(sizes, initial=0), strict=False):
            piece = drawn[start : start + value.numel()]
            value.add_(piece.view(value.shape), alpha=deviation)


def _zeros(values: State) -> State:
    return {
        name: torch.zeros_like(value, dtype=wide(value).dtype) for name, value in values.items()
    }


def _of_names(upload: Upload, shared: State, extra: State) -> Upload:
    return replace(
        upload,
        shared={name: value for name, value in upload.shared.items() if name in shared},
        extra={name: value for name, value in upload.extra.items() if name in extra},
    )
