"""A run that keeps single samples private: whether its method can, and the epsilon of its rounds.

Every step of a client's training is the Gaussian mechanism on a Poisson sample of its data;
neighbours differ by one sample of one client. The number of a client's samples is taken as known,
and so are the cohorts, which no data decide: epsilon is that of the client with the largest one,
over all steps of the rounds in which it trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from pfl.core.seeds import generator
from pfl.core.types import Cohort, Phase, SampleLevel
from pfl.federation.private import NOISE, UNACCOUNTED, check_noise
from pfl.federation.settings import Settings
from pfl.passage import accountant
from pfl.passage.privacy import Privacy
from pfl.training import batching, separable
from pfl.training.context import Context
from pfl.training.server_round import Coordinator

# The sentence that says what is private. Every place that says it takes it from here.
MEANING = (
    "all that leaves client j in training is private with respect to each single sample of j; "
    "tuning before a test and scores are not, and neither is an export of a model that was tuned"
)

# Steps of a client in a round, by the number of steps of an epoch, m: each has a sample with
# probability 1 / m.
Steps: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Account:
    """The epsilon of a run's rounds.

    Attributes:
        privacy: The settings.
        steps: Each client's steps in a round.
        cohort: Returns who trains in a round; ``None`` if nobody knows before the round.
    """

    privacy: Privacy
    steps: dict[int, Steps]
    cohort: Callable[[int], Cohort] | None

    @property
    def level(self) -> SampleLevel:
        """What jobs are told."""
        return SampleLevel(self.privacy.clip, self.privacy.sigma, self.privacy.noise == "system")

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of some rounds, for the client with the largest one."""
        counts = Counter[int]()
        for number in range(1, rounds + 1):
            counts.update([*self.steps] if self.cohort is None else self.cohort(number).trains)
        most: dict[Steps, int] = {}
        for client, count in counts.items():
            own = self.steps[client]
            most[own] = max(count, most.get(own, 0))
        return max((self._of(own, count) for own, count in most.items()), default=0.0)

    def affordable(self, rounds: int) -> int:
        """Return how many of some rounds can be played before epsilon is exceeded.

        Raises:
            ValueError: Not a single one.
        """
        limit = self.privacy.epsilon
        if limit is None or self.epsilon(rounds) <= limit:
            return rounds
        low, high = 0, rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= limit else (low, middle)
        if low == 0:
            raise ValueError(
                f"loop.privacy: a single round has epsilon {self.epsilon(1):.4g}, more than the "
                f"{limit:g} that are set; raise sigma, or lower the epochs or the batch size"
            )
        return low

    def described(self, asked: int, rounds: int) -> dict[str, str]:
        """Return the header's lines about privacy.

        Args:
            asked: The planned number of rounds.
            rounds: How many of them epsilon pays for.
        """
        own = self.privacy
        spent = "no epsilon, as sigma is 0"
        if own.sigma:
            spent = (
                f"epsilon {self.epsilon(rounds):.4g} at delta {own.delta:g} after {rounds} rounds "
                "for the client with the largest one (one sample more or less; "
                f"{accountant.described()})"
            )
        ends = ""
        if rounds < asked:
            ends = f"; ends there, as round {rounds + 1} of {asked} would exceed {own.epsilon:g}"
        rates = sorted({1 / count for steps in self.steps.values() for count, _ in steps})
        between = f"{rates[0]:.3g}" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g}"
        return {
            "privacy": f"sample level, {spent}{ends}",
            "private": MEANING,
            "mechanism": (
                f"the gradient of each sample is clipped to {own.clip:g} in each step; sigma "
                f"{own.sigma:g}; Poisson batches, rates {between}; sizes of clients are known"
            ),
            "noise": NOISE[own.noise],
            "unaccounted": UNACCOUNTED,
        }

    def _of(self, steps: Steps, rounds: int) -> float:
        parts = {1 / count: taken * rounds for count, taken in steps}
        return accountant.of_parts(parts, self.privacy.sigma, self.privacy.delta)


def account_of(
    privacy: Privacy, settings: Settings, context: Context, coordinator: Coordinator
) -> Account:
    """Return the account of a run.

    Raises:
        ValueError: The method cannot keep single samples private, delta is too large, or real
            clients would get noise of a seed.
    """
    check_noise(privacy, settings)
    name = type(context.module).__name__
    if coordinator.server.needs_label_counts:
        raise ValueError(f"loop.privacy: {name} cannot be run: its server needs class counts")
    infos = [coordinator.clients[client] for client in coordinator.eligible]
    largest = max(infos, key=lambda info: info.samples)
    if privacy.delta >= 1 / largest.samples:
        raise ValueError(
            f"loop.privacy: delta={privacy.delta} must be below {1 / largest.samples:.3g}, one "
            f"over the samples of the largest client ({largest.samples}): a delta as large allows "
            "to publish one sample"
        )
    job = coordinator.job(coordinator.start(), {}, largest.client, 1)
    told = replace(job, info=replace(job.info, label_counts=None))
    if (why := separable.obstacle(context, told)) is not None:
        raise ValueError(f"loop.privacy: samples cannot be kept private: {why}")
    steps: dict[int, Steps] = {}
    for info in infos:
        counts = Counter[int]()
        for part in context.plan:
            if isinstance(part, Phase):
                length = batching.length(part, context.entries, info)
                batches = batching.epoch_steps(context, part, info.samples)
                counts[batches] += batching.most_steps(context, part, length, info.samples)
        steps[info.client] = tuple(sorted(counts.items()))

    def cohort(number: int) -> Cohort:
        rng = generator(settings.seed, "cohort", number)
        return settings.sampler(coordinator.eligible, rng, number)

    return Account(privacy, steps, None if privacy.noise == "system" else cohort)
