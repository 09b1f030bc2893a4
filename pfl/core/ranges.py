"""Ranges of numbers, which stand beside the annotation of an argument.

A constructor that declares ``mu: NotNegative[float] = 0.01`` or ``decay: Annotated[float,
Range("(0, 1]")] = 1.0`` only assigns: its base class checks the numbers
(:func:`pfl.core.checks.check_arguments`). Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, TypeAlias, TypeVar

from pfl.imports.hints import beside

Number = TypeVar("Number", int, float)

MOST = 1e100
"""Largest number that a client may report; a larger one would make a mean over clients infinite."""

_IN_WORDS = {
    "[0, inf]": "must not be negative",
    "[0, inf)": "must be finite and not negative",
    "(0, inf]": "must be positive",
    "(0, inf)": "must be positive and finite",
    "[1, inf]": "must be at least 1",
}


@dataclass(frozen=True)
class Range:
    """The numbers that an argument may have.

    Attributes:
        interval: In mathematical notation: ``(0, 1]`` includes 1 but not 0. No interval includes
            NaN.

    Example:
        >>> share = Range("(0, 1]")
        >>> share.holds(1.0), share.holds(0.0), share.low, share.high
        (True, False, 0.0, 1.0)
    """

    interval: str

    def __str__(self) -> str:
        return self.interval

    @property
    def low(self) -> float:
        """The lower end."""
        return float(self.interval[1:-1].split(",")[0])

    @property
    def high(self) -> float:
        """The upper end; infinite if there is none."""
        return float(self.interval[1:-1].split(",")[1])

    def holds(self, value: float, slack: float = 0.0) -> bool:
        """Return ``True`` if a number lies in the interval, or at most ``slack`` beside it."""
        low, high = self.low - slack, self.high + slack
        above = value >= low if self.interval[0] == "[" else value > low
        return above and (value <= high if self.interval[-1] == "]" else value < high)

    def check(self, name: str, value: object) -> None:
        """Refuse a number outside the interval; what is no number, such as ``None``, passes.

        Raises:
            ValueError: The number is outside the interval, or NaN.
        """
        if isinstance(value, Real) and not self.holds(float(value)):
            required = _IN_WORDS.get(self.interval, f"must lie in {self.interval}")
            raise ValueError(f"{name} {required}, got {value}")


NotNegative: TypeAlias = Annotated[Number, Range("[0, inf]")]
EpochCount: TypeAlias = Annotated[int | float, Range("[0, inf]")]
Positive: TypeAlias = Annotated[Number, Range("(0, inf]")]
AtLeastOne: TypeAlias = Annotated[int, Range("[1, inf]")]
Fraction: TypeAlias = Annotated[float, Range("[0, 1]")]


def ranges_in(hint: Any) -> Iterator[Range]:  # noqa: ANN401
    """Yield the ranges in an annotation, those of the parts of a union too.

    Example:
        >>> [*map(str, ranges_in(Fraction | None))]
        ['[0, 1]']
    """
    return beside(hint, Range)
