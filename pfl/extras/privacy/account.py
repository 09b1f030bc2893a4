"""The epsilon of a private run: the rounds that it allows, and the privacy statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar

from pfl.core.types import Job
from pfl.extras.privacy import accountant
from pfl.extras.privacy.terms import Terms
from pfl.training.uplink import UplinkStep

_UNACCOUNTED = (
    "the choice of settings and of the best round; what data were standardised with; sizes, losses "
    "and scores in the run's records"
)
# Noise from the seed is repeated; noise from the system is not.
_AGAIN = "; noise that was drawn anew, where a resumed run plays rounds again"
_NOISE = {
    "seed": "from the run's seed, for experiments: who knows the seed can subtract it",
    "system": "from the operating system's source, so that no repetition gives the same numbers",
}


class Account(UplinkStep, ABC):
    """A private run's step of the uplink: its epsilon and the privacy lines of its header.

    Attributes:
        meaning: Sentence on what is private, used wherever this is stated.
        whose: Whose epsilon it is if clients differ.
        unit: Unit by which neighbours differ.
        lower: Settings that can be lowered for a smaller epsilon.
        privacy: The settings.
    """

    meaning: ClassVar[str]
    whose: ClassVar[str] = ""
    unit: ClassVar[str]
    lower: ClassVar[str]
    privacy: Terms

    @property
    def secret(self) -> bool:
        """Whether cohorts are drawn from the operating system's source."""
        return self.privacy.noise == "system"

    def check_chain(self, chain: Sequence[UplinkStep], job: Job) -> None:
        """Refuse steps whose effect the account does not count.

        Raises:
            ValueError: Another step keeps an account or merges uploads.
        """
        for step in chain:
            if step is self:
                continue
            if isinstance(step, Account):
                raise ValueError(
                    "Privacy: a run has it once, as no account counts the noise of the other"
                )
            if type(step).merge is not UplinkStep.merge:
                raise ValueError(
                    f"Privacy: {type(step).__name__} also merges uploads, without noise"
                )

    @abstractmethod
    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of a number of rounds."""

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """The mechanism in words."""

    def max_rounds(self, rounds: int) -> int:
        """Return how many of the planned rounds are within epsilon.

        Raises:
            ValueError: None of them.
        """
        most = self.privacy.epsilon
        if most is None or self.epsilon(rounds) <= most:
            return rounds
        paid = bisect_right(range(1, rounds), most, key=self.epsilon)
        if paid == 0:
            raise ValueError(
                f"Privacy: a single round has epsilon {self.epsilon(1):.4g}, above the "
                f"limit of {most:g}; raise sigma, or lower {self.lower}"
            )
        return paid

    def described(self, planned: int, rounds: int) -> dict[str, str]:
        """Return the header's lines about privacy.

        Args:
            planned: The planned number of rounds.
            rounds: How many of them are within epsilon.
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
