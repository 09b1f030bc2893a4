"""The epsilon of a private run: the rounds that it pays for, and what the run may be called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import ClassVar

from pfl.extras.privacy import accountant
from pfl.extras.privacy.terms import Terms
from pfl.training.uplink import UplinkStep

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


class Account(UplinkStep, ABC):
    """A private run's step of the uplink: its epsilon, and what its header says is private.

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
    privacy: Terms

    @property
    def secret(self) -> bool:
        """Whether cohorts come from the operating system."""
        return self.privacy.noise == "system"

    @abstractmethod
    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of some rounds."""

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """What makes the run private, in words."""

    def max_rounds(self, rounds: int) -> int:
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
                f"Privacy: a single round has epsilon {self.epsilon(1):.4g}, more than the "
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
