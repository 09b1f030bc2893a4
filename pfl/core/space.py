"""Dimensions of a search: the options that a method declares worth searching."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

# Digits of a number in a range, so that settings are short and the same in every file.
_DIGITS = 4


@dataclass(frozen=True)
class Dimension:
    """One option that a search varies: a range of numbers, or a list of values.

    Attributes:
        name: The option; a dotted key such as ``optimizer.init_args.lr`` for one of an argument's.
        low: Smallest number of a range.
        high: Largest number of a range.
        log: Whether the range is searched on a logarithmic scale.
        choices: The values of a list, numbers in ascending order.

    Raises:
        ValueError: It is neither a range nor a list of at least two values.

    Example:
        >>> Dimension("mu", 0.001, 1.0, log=True).at(0.5)
        0.03162
        >>> Dimension("epochs", choices=(1, 2, 5)).at(0.99)
        5
    """

    name: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.choices:
            if len(self.choices) < 2 or self.low is not None or self.high is not None or self.log:
                raise ValueError(f"{self.name}: choices need two values or more and no range")
        elif self.low is None or self.high is None or not self.low < self.high:
            raise ValueError(f"{self.name}: expected low < high, got {self.low} and {self.high}")
        elif self.log and self.low <= 0:
            raise ValueError(f"{self.name}: a logarithm needs a positive number, got {self.low}")

    def at(self, place: float) -> Any:  # noqa: ANN401
        """Return the value at a place in [0, 1) of the dimension; ranges give four digits."""
        if self.choices:
            return self.choices[int(place * len(self.choices))]
        assert self.low is not None
        assert self.high is not None
        if self.log:
            value = self.low * math.exp(place * math.log(self.high / self.low))
        else:
            value = self.low + place * (self.high - self.low)
        return float(f"{value:.{_DIGITS}g}")

    def holds(self, value: object) -> bool:
        """Return whether a value is one that :meth:`at` gives, or lies between two of a range."""
        if self.choices:
            return any(type(value) is type(one) and value == one for one in self.choices)
        if self.low is None or self.high is None or type(value) not in (int, float):
            return False
        return self.low <= cast(float, value) <= self.high

    def plain(self) -> dict[str, Any]:
        """Return the dimension as plain values, ready for JSON."""
        if self.choices:
            return {"name": self.name, "choices": [*self.choices]}
        return {"name": self.name, "low": self.low, "high": self.high, "log": self.log}
