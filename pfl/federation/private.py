"""A private run: the rounds that its epsilon pays for, what it may be called, and its passage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pfl.core.data import FederatedData
from pfl.federation.sampling import poisson_rate
from pfl.federation.settings import Settings
from pfl.passage import accountant
from pfl.passage.passage import Passage
from pfl.passage.privacy import Privacy
from pfl.training.context import Context
from pfl.training.server_round import Coordinator

_UNACCOUNTED = (
    "the choice of settings and of the best round; what data were standardised with; sizes, losses "
    "and scores in the run's records"
)
# Noise of the seed is the same again; that of the system is not.
_AGAIN = "; noise that was drawn anew, where a resumed run plays rounds again"
_NOISE = {
    "seed": "from the run's seed, for experiments: who knows the seed can subtract it",
    "system": "from the operating system's source, so that no repetition gives the same numbers",
}


class Account(ABC):
    """The epsilon of a private run, and the lines of its header that say what is private.

    Attributes:
        meaning: The sentence that says what is private. Every place that says it takes it from
            here.
        whose: Whose epsilon it is, if clients have different ones.
        unit: What one of two neighbours has more.
        lower: What can be lowered for less epsilon.
        privacy: The settings.
    """

    meaning: ClassVar[str]
    whose: ClassVar[str] = ""
    unit: ClassVar[str]
    lower: ClassVar[str]
    privacy: Privacy

    @abstractmethod
    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of some rounds."""

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """What makes the run private, in words."""

    def affordable(self, rounds: int) -> int:
        """Return how many of the planned rounds epsilon pays for.

        Raises:
            ValueError: Not a single one.
        """
        most = self.privacy.epsilon
        if most is None or self.epsilon(rounds) <= most:
            return rounds
        paid = bisect_right(range(1, rounds), most, key=self.epsilon)
        if paid == 0:
            raise ValueError(
                f"loop.privacy: a single round has epsilon {self.epsilon(1):.4g}, more than the "
                f"{most:g} that are set; raise sigma, or lower {self.lower}"
            )
        return paid

    def described(self, planned: int, rounds: int) -> dict[str, str]:
        """Return the header's lines about privacy.

        Args:
            planned: The planned number of rounds.
            rounds: How many of them epsilon pays for.
        """
        privacy = self.privacy
        spent = "no epsilon, as sigma is 0"
        if privacy.sigma:
            spent = (
                f"epsilon {self.epsilon(rounds):.4g} at delta {privacy.delta:g} after {rounds} "
                f"rounds{self.whose} (one {self.unit} more or less; {accountant.described()})"
            )
        if rounds < planned:
            spent += f"; ends there, as round {rounds + 1} of {planned} would exceed "
            spent += f"{privacy.epsilon:g}"
        return {
            "privacy": f"{privacy.level} level, {spent}",
            "private": self.meaning,
            "mechanism": self.mechanism,
            "noise": _NOISE[privacy.noise],
            "unaccounted": _UNACCOUNTED + (_AGAIN if privacy.noise == "system" else ""),
        }


@dataclass(frozen=True)
class ClientAccount(Account):
    """The account of a run that keeps whole clients private.

    Attributes:
        privacy: The settings.
        passage: What happens to uploads.
    """

    privacy: Privacy
    passage: Passage

    meaning = (
        "client j's model is private with respect to every other client; an export of it is a "
        "release of j's data"
    )
    unit = "client"
    lower = "the probability of the sampler"

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of some rounds."""
        privacy = self.privacy
        return accountant.epsilon(self.passage.rate, privacy.sigma, rounds, privacy.delta)

    @property
    def mechanism(self) -> str:
        """What makes the run private, in words."""
        privacy, passage = self.privacy, self.passage
        clip = f"clip {privacy.clip:g}" + (", then adaptive" if privacy.adaptive else "")
        return (
            f"{clip}; sigma {privacy.sigma:g}; Poisson cohorts, rate {passage.rate:g} of "
            f"{passage.clients} clients; all count equally, over {passage.expected:g}"
        )


def check_loss(data: FederatedData) -> None:
    """Refuse class weights that are counted in the data: they enter every gradient, without noise.

    Raises:
        ValueError: The data count them.
    """
    loss = getattr(data, "loss", None)
    if isinstance(loss, Mapping) and loss.get("class_weights") == "balanced":
        raise ValueError(
            "loop.privacy: data.loss: class_weights: balanced is counted in all clients' samples, "
            "and no noise covers that: give the weights as numbers"
        )


def check(privacy: Privacy, settings: Settings, units: int, whole: str, one: str) -> None:
    """Refuse noise from a seed for real clients, and a delta that is too large.

    Args:
        privacy: The settings of privacy.
        settings: Settings of the loop.
        units: Number of clients or samples, one of which is protected.
        whole: What ``units`` counts, in words.
        one: What a large delta would allow to be published, in words.

    Raises:
        ValueError: One of the two is the case.
    """
    if privacy.noise == "seed" and not settings.runner.simulates:
        raise ValueError(
            "loop.privacy: the clients are real, and who knows the run's seed could subtract noise "
            "that comes from it: set noise: system"
        )
    check_delta("loop.privacy: delta", privacy.delta, units, whole, one)


def check_delta(name: str, delta: float, units: int, whole: str, one: str) -> None:
    """Refuse a delta that is too large.

    Args:
        name: What the setting is called.
        delta: Its value.
        units: As in :func:`check`.
        whole: Likewise.
        one: Likewise.

    Raises:
        ValueError: It is at least one over ``units``.
    """
    if units and delta >= 1 / units:
        raise ValueError(
            f"{name}={delta} must be below {1 / units:.3g}, one over the {whole} ({units}): "
            f"a delta as large allows to publish {one}"
        )


def account_of(
    privacy: Privacy, settings: Settings, context: Context, coordinator: Coordinator
) -> ClientAccount:
    """Return the account of a run that keeps whole clients private; give it its passage.

    Raises:
        ValueError: The sampler draws no Poisson cohorts, the method cannot be run privately, a
            number does not fit the number of clients, or real clients would get noise of a seed.
    """
    rate, clients = poisson_rate(settings.sampler), len(coordinator.eligible)
    check(privacy, settings, clients, "number of clients", "one client's data")
    module, server = context.module, coordinator.server
    passage = Passage.of(privacy, rate, clients, module, server, context.template, settings.seed)
    coordinator.passage = passage
    return ClientAccount(privacy, passage)
