"""The epsilon of a private run: the rounds that it allows, and the privacy statement."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

from pfl.core.server import ServerState
from pfl.extras.privacy import accountant
from pfl.extras.privacy.terms import Terms
from pfl.training.uplink import Guarantee

COLUMN = "privacy/sigma"
"""The column of a round's row with the deviation of the noise that was seen in it."""

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
# Deviations by which the size of noise may be too small by chance: once in a billion times.
_CHANCE = 6.0


@dataclass
class Witness:
    """What an account has seen of its own run, in this process.

    Attributes:
        kind: The class whose effect is accounted for.
        terms: The numbers of the run.
        accepted: Whether the account is a step of the run's uplink itself.
        tried: Whether a trial before the first round has shown the noise.
        after: The server's state that the account made last.
        rate: Returns the probability with which the run's sampler draws a client.
    """

    kind: type[Account] | None = None
    terms: Terms | None = None
    accepted: bool = False
    tried: bool = False
    after: ServerState | None = None
    rate: Callable[[], float] = field(default=lambda: math.nan)


class Account(Guarantee):
    """A private run's step of the uplink: its epsilon and the privacy lines of its header.

    Epsilon is told of noise that was seen: in a trial before the first round, and then in each
    round. Without it there is none.

    Attributes:
        meaning: Sentence on what is private, used wherever this is stated.
        whose: Whose epsilon it is if clients differ.
        unit: Unit by which neighbours differ.
        lower: Settings that can be lowered for a smaller epsilon.
        privacy: The settings.
        witness: What the account has seen.
    """

    meaning: ClassVar[str]
    whose: ClassVar[str] = ""
    unit: ClassVar[str]
    lower: ClassVar[str]
    privacy: Terms
    witness: Witness

    @property
    def secret(self) -> bool:
        """Whether cohorts are drawn from the operating system's source."""
        return self.privacy.noise == "system"

    def accept(self, kind: type[Account], facts: Mapping[str, bool]) -> None:
        """Begin to act in a run.

        Args:
            kind: The class whose effect is accounted for.
        terms: The numbers of the run.
            facts: Whether each of the account's facts is that of the run, by name.

        Raises:
            ValueError: The account is of another class, or of another run.
        """
        self.witness.kind = kind
        self._check_kind()
        if wrong := [name for name, right in facts.items() if not right]:
            raise ValueError(
                f"Privacy: the account has another {wrong[0]} than the run: give Privacy itself in "
                "loop.uplink"
            )
        self.witness.accepted = True

    def _check_kind(self) -> None:
        names = {item.name for item in fields(self)}  # type: ignore[arg-type]
        seen, own = self.witness, self.privacy
        same = type(self) is seen.kind and type(own) is Terms and own == seen.terms
        if not same or vars(self).keys() - names:
            raise ValueError(
                f"Privacy: {type(self).__name__} does not do what is accounted for: give Privacy "
                "itself in loop.uplink"
            )

    def check_accepted(self) -> None:
        """Refuse to act for a step that is not this one.

        Raises:
            ValueError: The account is not a step of the run's uplink, or was changed.
        """
        if self.witness.accepted:
            self._check_kind()
        else:
            raise ValueError(
                "Privacy: it acts only as a step of loop.uplink itself, not within another step"
            )

    @abstractmethod
    def planned(self, rounds: int) -> float:
        """Return the epsilon of a number of rounds, if each has its noise."""

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """The mechanism in words."""

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of a number of rounds.

        Raises:
            ValueError: No noise was seen.
        """
        self.check_accepted()
        if not self.witness.tried:
            raise ValueError("Privacy: no noise was seen yet, and without it there is no epsilon")
        return self.planned(rounds)

    def max_rounds(self, rounds: int) -> int:
        """Return how many of the planned rounds are within epsilon.

        Raises:
            ValueError: None of them.
        """
        most = self.privacy.epsilon
        if most is None or self.planned(rounds) <= most:
            return rounds
        paid = bisect_right(range(1, rounds), most, key=self.planned)
        if paid == 0:
            raise ValueError(
                f"Privacy: a single round has epsilon {self.planned(1):.4g}, above the "
                f"limit of {most:g}; raise sigma, or lower {self.lower}"
            )
        return paid

    def stated(
        self, history: Sequence[Mapping[str, float]], planned: int, rounds: int
    ) -> dict[str, str]:
        """Return the line with the epsilon of some rounds.

        Args:
            history: The rounds that were played, with the noise that was seen in each.
            planned: The planned number of rounds.
            rounds: How many of them are within epsilon.

        Raises:
            ValueError: A round shows no noise.
        """
        privacy = self.privacy
        for number, row in enumerate(history, 1):
            if not row.get(COLUMN, -1.0) >= privacy.sigma:
                raise ValueError(
                    f"Privacy: round {number} shows no noise of sigma {privacy.sigma:g}, so that "
                    "there is no epsilon"
                )
        spent = "no epsilon, as sigma is 0"
        if privacy.sigma:
            spent = (
                f"epsilon {self.epsilon(rounds):.4g} at delta {privacy.delta:g} after {rounds} "
                f"rounds{self.whose} (one {self.unit} more or less; {accountant.described()})"
            )
        if rounds < planned:
            spent += f"; ends there, as round {rounds + 1} of {planned} would exceed "
            spent += f"{privacy.epsilon:g}"
        return {"privacy": f"{privacy.level} level, {spent}"}

    def described(self, planned: int, rounds: int) -> dict[str, str]:
        """Return the header's lines on what is private, and how."""
        privacy = self.privacy
        return {
            "private": self.meaning,
            "mechanism": self.mechanism,
            "noise": _NOISE[privacy.noise],
            "unaccounted": _UNACCOUNTED + (_AGAIN if privacy.noise == "system" else ""),
        }


def check_drawn(squares: float, count: int, deviation: float) -> None:
    """Refuse noise that is smaller than it should be by more than chance.

    The message must not tell how large it is: who knows the size of noise knows more of what it
    hides.

    Args:
        squares: Sum of the squares of what was added.
        count: How many numbers were added.
        deviation: The deviation that they should have.

    Raises:
        ValueError: It is too small.
    """
    if not count or not deviation:
        return
    # Wilson and Hilferty's approximation of a chi-square quantile.
    spread = 2 / (9 * count)
    least = count * max(0.0, 1 - spread - _CHANCE * math.sqrt(spread)) ** 3
    if not squares > least * deviation**2:
        raise ValueError(
            f"Privacy: the noise that was added to {count} numbers is smaller than it should be: "
            "the source of random numbers does not work"
        )
