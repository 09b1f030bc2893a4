"""Samplers of a round's clients: pure functions of the eligible clients, an rng and the round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
import torch
from scipy.special import bdtrc

from pfl.core.checks import check_arguments
from pfl.core.ranges import Fraction, NotNegative, Range
from pfl.core.seeds import generator
from pfl.core.types import Cohort

# Acceptance rate below which redrawing would appear to hang (a draw takes ten microseconds).
_RAREST = 1e-5


class Sampler(Protocol):
    """Chooses the cohort of a round."""

    def __call__(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort:
        """Choose among ``clients``.

        Args:
            clients: Numbers of the clients with training data, ascending.
            rng: The round's own random stream.
            round: Number of the round, from 1.
        """


@dataclass(frozen=True)
class UniformSampler(Sampler):
    """Draws ``max(1, int(fraction * n))`` clients in each round, uniformly without replacement.

    Args:
        fraction: Share of clients that upload (participation or join ratio), in (0, 1].
        train_all: Every client trains in every round, but only the sampled ones upload (the
            protocol of pFedVEM and of the authors' pFedMe; for Local the schedule "every round").
        numpy_seed: Draw the cohorts of PFLlib's code, from numpy's legacy generator with this seed,
            whatever the run's seed is (FedAS's released code: 0); ``None`` follows the run's seed.

    Raises:
        ValueError: ``fraction`` is outside (0, 1], or ``numpy_seed`` outside [0, 2**32 - 1].
    """

    fraction: Annotated[float, Range("(0, 1]")] = 1.0
    train_all: bool = False
    # The range of seeds of numpy's legacy generator.
    numpy_seed: Annotated[int, Range("[0, 4294967295]")] | None = None

    def __post_init__(self) -> None:
        check_arguments(self)

    def __call__(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort:
        """Draw the round's cohort."""
        # The added 1e-9 keeps 0.29 * 100 = 28.999999999999996 at 29 clients.
        count = min(len(clients), max(1, int(self.fraction * len(clients) + 1e-9)))
        chosen = subset(clients, count, rng)
        if self.numpy_seed is not None:
            stream = np.random.RandomState(self.numpy_seed)
            for _ in range(round):
                chosen = stream.choice(clients, count, replace=False).tolist()
        return _cohort(chosen, clients, self.train_all)


@dataclass(frozen=True)
class BernoulliSampler(Sampler):
    """Draws each client independently with the same probability, and redraws if too few upload.

    Args:
        probability: Probability that a client uploads, in (0, 1].
        minimum: Smallest accepted number of uploads (pFedVEM's official code: 2); 0 allows rounds
            without uploads.
        train_all: As in :class:`UniformSampler`; pFedVEM's default.
        numpy_seed: Draw the cohorts of pFedVEM's code, from numpy's generator with this seed,
            whatever the run's seed is (there 1234); ``None`` follows the run's seed.

    Raises:
        ValueError: ``probability`` is outside (0, 1], ``minimum`` or ``numpy_seed`` is negative, or
            so many uploads are too unlikely with the given clients.
    """

    probability: Annotated[float, Range("(0, 1]")] = 0.1
    minimum: NotNegative[int] = 2
    train_all: bool = True
    numpy_seed: NotNegative[int] | None = None

    def __post_init__(self) -> None:
        check_arguments(self)

    def __call__(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort:
        """Draw the round's cohort."""
        minimum = min(self.minimum, len(clients))
        # The probability that at least ``minimum`` clients upload.
        if bdtrc(minimum - 1, len(clients), self.probability) < _RAREST:
            enough = minimum / len(clients)
            raise ValueError(
                f"probability={self.probability} hardly ever gives minimum={self.minimum} uploads "
                f"from {len(clients)} clients: raise probability (at {enough:.2g} it gives that "
                "many on average), or lower minimum"
            )
        count, rate = len(clients), self.probability
        if self.numpy_seed is None:
            joined = _enough(lambda: (torch.rand(count, generator=rng) < rate).tolist(), minimum)
        else:
            stream = np.random.default_rng(self.numpy_seed)
            for _ in range(round):
                joined = _enough(lambda: (stream.uniform(size=count) < rate).tolist(), minimum)
        chosen = [client for client, joins in zip(clients, joined, strict=True) if joins]
        return _cohort(chosen, clients, self.train_all)


@dataclass(frozen=True)
class FixedStragglers(Sampler):
    """Makes a fixed share of clients stragglers; all others take part in every round.

    Args:
        share: Share of the clients that are stragglers, in [0, 1); their number is rounded down.
        probability: Probability that a straggler takes part in a round, in [0, 1].
        seed: Seed that determines which clients are stragglers.

    Raises:
        ValueError: A number is out of its range.
    """

    share: Annotated[float, Range("[0, 1)")] = 0.5
    probability: Fraction = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_arguments(self)

    def __call__(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort:
        """Draw the round's cohort."""
        # The added 1e-9 keeps 0.29 * 100 = 28.999999999999996 at 29 clients.
        count = int(self.share * len(clients) + 1e-9)
        order = torch.randperm(len(clients), generator=generator(self.seed, "stragglers"))
        late = {clients[place] for place in order[:count].tolist()}
        joined = (torch.rand(len(clients), generator=rng) < self.probability).tolist()
        pairs = zip(clients, joined, strict=True)
        return _cohort([c for c, joins in pairs if joins or c not in late], clients, False)


@dataclass(frozen=True)
class AllFirst(Sampler):
    """Lets every client take part in the first round, and another sampler draw all others.

    Args:
        then: The other sampler (FedOTP's released code: all in round 0, then a tenth).
    """

    then: Sampler = UniformSampler()

    def __call__(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort:
        """Return all clients, or draw the round's cohort."""
        if round == 1:
            return _cohort(clients, clients, False)
        return self.then(clients, rng, round)


def subset(clients: Sequence[int], count: int, rng: torch.Generator) -> list[int]:
    """Return ``count`` random clients, or all if there are fewer; ascending."""
    chosen = torch.randperm(len(clients), generator=rng)[:count].tolist()
    return sorted(clients[index] for index in chosen)


def _enough(draw: Callable[[], list[bool]], minimum: int) -> list[bool]:
    """Draw uploading clients until there are at least ``minimum``."""
    while sum(joined := draw()) < minimum:
        pass
    return joined


def _cohort(chosen: Sequence[int], clients: Sequence[int], train_all: bool) -> Cohort:
    uploads = tuple(sorted(chosen))
    return Cohort(trains=tuple(clients) if train_all else uploads, uploads=uploads)
