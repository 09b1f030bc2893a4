"""User-level privacy: the epsilon, the clip and the noisy mean of uploads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pfl.core.devices import wide
from pfl.core.seeds import derive
from pfl.core.server import Folding, Round, Server, ServerState
from pfl.core.state import finite
from pfl.core.types import NO_CLIENT, Broadcast, ClientInfo, Job, Result, State, Upload
from pfl.extras.privacy import accountant, draws
from pfl.extras.privacy.account import COLUMN, Account, Witness, check_drawn
from pfl.extras.privacy.clip import WHOLE, Clip
from pfl.extras.privacy.difference import bounded, norm
from pfl.extras.privacy.refusal import sent_extra
from pfl.extras.privacy.terms import Terms
from pfl.federation.sampling import BernoulliSampler, UniformSampler
from pfl.training.uplink import Start

# By which a clipped difference may be longer than the clip.
_ROUNDING = 1e-6
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
        witness: What the account has seen.
    """

    privacy: Terms
    rate: float
    clients: int
    extra: State
    seed: int
    server: Server[Any]
    received_by: Callable[[ServerState], Broadcast]
    witness: Witness = field(default_factory=Witness, compare=False, repr=False)

    covers: ClassVar[Literal["server"]] = "server"
    meaning = (
        "client j's model is private with respect to every other client; an export of it is a "
        "release of j's data"
    )
    unit = "client"
    lower = "the probability of the sampler"

    @classmethod
    def of(cls, privacy: Terms, start: Start) -> ClientAccount:
        """Return the account of a run.

        Raises:
            ValueError: The sampler does not draw Poisson cohorts.
        """
        module, server = start.context.module, start.server
        extra = {name: start.context.template[name] for name in sent_extra(module, server)}
        rate, seed = poisson_rate(start.sampler), derive(start.seed, "privacy")
        facts = rate, len(start.clients), extra, seed, server, start.broadcast
        return cls(privacy, *facts, Witness(terms=replace(privacy)))

    def accepted(self, start: Start) -> None:
        """Begin to act in a run; see :meth:`Account.accept`.

        Raises:
            ValueError: See :meth:`Account.accept`.
        """
        right = self.of(self.privacy, start)
        names = "rate", "clients", "seed", "server", "received_by"
        facts = {name: getattr(self, name) == getattr(right, name) for name in names}
        self.accept(ClientAccount, {**facts, "extra": [*self.extra] == [*right.extra]})
        self.witness.rate = partial(poisson_rate, start.sampler)

    def tried(self, start: Start, job: Job, merged: Callable[[], ServerState]) -> None:
        """Play a round without clients, of which only noise remains.

        Raises:
            ValueError: Clients do not clip, or the noise does not reach the server's state.
        """
        if not any(type(step) is Clip and step.clip == self.privacy.clip for step in job.steps):
            raise ValueError("Privacy: clients do not clip what they send")
        self._check_merged(merged())
        self.witness.tried = True

    def witnessed(self, results: Mapping[int, Result], after: ServerState) -> dict[str, float]:
        """Return the noise that the server's state was made with.

        Raises:
            ValueError: The state was made without it.
        """
        self._check_merged(after)
        if self.witness.rate() != self.rate:
            raise ValueError(f"Privacy: the sampler no longer draws with rate {self.rate:g}")
        return {COLUMN: self.privacy.sigma}

    def _check_merged(self, after: ServerState) -> None:
        if self.witness.after is not after:
            raise ValueError(
                "Privacy: the server's state is not the one with noise: another step replaced it"
            )

    @property
    def expected(self) -> float:
        """The expected number of uploading clients in a round, q N: the denominator of means."""
        return self.rate * self.clients

    def planned(self, rounds: int) -> float:
        """Return the epsilon of a number of rounds, if each has its noise."""
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
        self.check_accepted()
        return replace(job, steps=(*job.steps, self.step(state)))

    def received(self, job: Job, result: Result) -> Result:
        """Return a result, marked as not counting if a difference is not finite."""
        if result.upload is None or finite(result.upload.extra):
            return result
        return replace(result, finite=False)

    def shown(self, result: Result) -> Result:
        """Hide the upload: a private client's message is for the sum alone and is not a model."""
        return replace(result, upload=None)

    def fold(self, state: ServerState) -> Round[ServerState]:
        """Return what sums the differences of a round.

        Raises:
            ValueError: The account is not a step of this run.
        """
        self.check_accepted()
        return _NoisySum(self, state)

    def finished(
        self, state: ServerState, received: State, shared: State, extra: State, whole: Tensor
    ) -> ServerState:
        """Return the state after a round, from the sum of all differences.

        Args:
            state: The state before the round.
            received: What all clients received.
            shared: Sums of entries that travel; they get the round's noise in place.
            extra: Likewise, of what is sent in addition.
            whole: Sum of the clients' votes on the clip.

        Raises:
            ValueError: The noise does not work.
        """
        number, clip = state.round + 1, self.clip(state)
        if self.privacy.sigma:
            deviation = self.privacy.sum_deviation(self.expected) * clip
            noisy = [*shared.values(), *extra.values()]
            before = [value.clone() for value in noisy]
            self._add_noise(noisy, deviation, "sum", number)
            added = [value - old for value, old in zip(noisy, before, strict=True)]
            squares = sum(float(value.square().sum()) for value in added)
            check_drawn(squares, sum(value.numel() for value in noisy), deviation)
        mean = Upload(
            client=NO_CLIENT,
            samples=1,
            shared={
                name: (wide(value) + shared[name] / self.expected).to(value.dtype)
                for name, value in received.items()
            },
            extra={n: (extra[n] / self.expected).to(v.dtype) for n, v in self.extra.items()},
        )
        after: ServerState = Folding(self.server, state).finish_with(mean, self.expected)
        report = {**(after.report or {}), _CLIP: clip}
        if self.privacy.adaptive:
            if self.privacy.sigma:
                deviation = self.privacy.count_deviation(self.expected)
                self._add_noise([whole], deviation, "count", number)
            report[_SHARE] = float(whole) / self.expected + 0.5
        after = replace(after, report=report, client_report=None)
        self.witness.after = after
        return after

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


class _NoisySum(Round[ServerState]):
    """The sum of the clipped differences of a round, to which the account adds noise.

    The uploads are the received differences in ascending order of clients, perhaps none. All
    clients received the same message.
    """

    def __init__(self, account: ClientAccount, state: ServerState) -> None:
        super().__init__()
        self._account, self._state = account, state
        self._received = account.received_by(state).shared
        self._clip = account.clip(state)
        self._shared, self._extra = _zeros(self._received), _zeros(account.extra)
        self._whole = torch.zeros((), dtype=torch.float64)

    def add(self, upload: Upload) -> None:
        """Add a client's difference, clipped once more.

        Raises:
            ValueError: The clip does not work.
        """
        vote = upload.extra.get(WHOLE, torch.zeros(())).sign() / 2
        # Clients of other versions may send something else.
        change = bounded(_of_names(upload, self._shared, self._extra), self._clip)
        _check_clipped(change, self._clip)
        for sums, values in ((self._shared, change.shared), (self._extra, change.extra)):
            for name, value in values.items():
                sums[name] += value
        self._whole = self._whole + vote.to(self._whole)

    def finish(self, without: Collection[int] = ()) -> ServerState:
        """Return the server's state, from the noisy sum."""
        sums = self._shared, self._extra, self._whole
        return self._account.finished(self._state, self._received, *sums)


def _check_clipped(change: Upload, clip: float) -> None:
    """Refuse a difference that is longer than the clip.

    Raises:
        ValueError: It is.
    """
    if not norm(change) <= clip * (1 + _ROUNDING):
        raise ValueError(f"Privacy: the difference of client {change.client} was not clipped")


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


def poisson_rate(sampler: Callable[..., Any]) -> float:
    """Return the probability with which each client uploads, independently of the others.

    Raises:
        ValueError: The sampler draws clients differently, or from its own seed.
    """
    # Subclasses may draw as they like.
    if type(sampler) is BernoulliSampler and (sampler.minimum, sampler.numpy_seed) == (0, None):
        return sampler.probability
    if type(sampler) is UniformSampler and (sampler.fraction, sampler.numpy_seed) == (1, None):
        return 1.0
    raise ValueError(
        f"Privacy needs Poisson cohorts, which may be empty: sampler BernoulliSampler with "
        f"minimum: 0 and numpy_seed: null, or all clients in every round; got {sampler}"
    )
