"""The search space of a sweep: its parameters, as Optuna and as an experiment need them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from pfl.core.seeds import derive

# Values that Optuna can store.
Choice: TypeAlias = bool | int | float | str | None
Point: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Categorical:
    """A choice between some values.

    Args:
        values: Any YAML values.
        probabilities: Probability of each value, summing to one; ``None`` for equal ones.
    """

    values: Sequence[Any]
    probabilities: Sequence[float] | None = None

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution for Optuna."""
        return CategoricalDistribution(self.grid())

    def grid(self) -> list[Choice]:
        """Return all choices; lists and mappings, which Optuna cannot store, as JSON."""
        plain = (str, int, float, bool, type(None))
        return [value if isinstance(value, plain) else json.dumps(value) for value in self.values]

    def decode(self, choice: Choice) -> Any:  # noqa: ANN401
        """Return the value that a choice stands for."""
        return self.values[self.grid().index(choice)]


@dataclass(frozen=True)
class Range:
    """A number in a range.

    Args:
        low: Smallest value.
        high: Largest value.
        whole: Whether only integers are drawn.
        log: Whether the number is drawn on a logarithmic scale.
        step: Values are multiples of it; ``None`` allows any value.
    """

    low: float
    high: float
    whole: bool = False
    log: bool = False
    step: float | None = None

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution for Optuna, which has no logarithmic distribution with steps."""
        step = self.step or 1
        stepped = self.whole or self.step is not None
        if not stepped or (self.log and not (self.whole and step == 1)):
            return FloatDistribution(self.low, self.high, log=self.log)
        first, last = (self._multiple(k) for k in self._multiples)
        if self.whole:
            return IntDistribution(int(first), int(last), log=self.log, step=int(step))
        return FloatDistribution(first, last, step=step)

    @property
    def _multiples(self) -> tuple[int, int]:
        """The smallest and the largest k for which k times the step is in the range."""
        low, high = (bound / (self.step or 1) for bound in (self.low, self.high))
        # 0.3 / 0.1 is 2.9999999999999996.
        return math.ceil(low - 1e-9 * abs(low)), math.floor(high + 1e-9 * abs(high))

    def _multiple(self, k: int) -> float:
        # Rounded, because 3 * 0.1 is 0.30000000000000004.
        return float(f"{k * (self.step or 1):.12g}")

    @property
    def empty(self) -> bool:
        """``True`` if the range has no value."""
        first, last = self._multiples
        return self.low > self.high or (self.step is not None and first > last)

    def grid(self) -> list[Choice] | None:
        """Return all values, or ``None`` if they cannot be enumerated."""
        if self.log or (self.step is None and not self.whole):
            return None
        first, last = self._multiples
        return [self.decode(self._multiple(k)) for k in range(first, last + 1)]

    def decode(self, choice: Any) -> Any:  # noqa: ANN401
        """Return the value of a choice, rounded to a step or an integer if the range needs it."""
        if self.step is not None:
            first, last = self._multiples
            choice = self._multiple(min(max(round(choice / self.step), first), last))
        return int(choice) if self.whole else float(choice)


Parameter: TypeAlias = Categorical | Range


@dataclass(frozen=True)
class Space:
    """All parameters of a sweep.

    Args:
        varied: Parameters that are searched.
        constants: Parameters that are the same for every point.
    """

    varied: Mapping[str, Parameter]
    constants: Point = field(default_factory=dict)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The distributions of the varied parameters for Optuna."""
        return {name: parameter.distribution for name, parameter in self.varied.items()}

    @cached_property
    def grids(self) -> dict[str, list[Choice] | None]:
        """All choices of each varied parameter; ``None`` if they cannot be enumerated."""
        return {name: parameter.grid() for name, parameter in self.varied.items()}

    @property
    def size(self) -> int:
        """Number of points of the grid."""
        return math.prod(len(grid or ()) for grid in self.grids.values())

    def on_grid(self, number: int) -> dict[str, Choice]:
        """Return the choices at a point of the grid, from 0; the last parameter varies fastest."""
        places = np.unravel_index(number, [len(grid or ()) for grid in self.grids.values()])
        chosen = zip(self.grids.items(), places, strict=True)
        return {name: (grid or ())[place] for (name, grid), place in chosen}

    def weighted(self, seed: int) -> dict[str, Choice]:
        """Draw the parameters that have probabilities, which Optuna does not support."""
        draw = np.random.default_rng(derive(seed, "weighted"))
        return {
            name: parameter.grid()[draw.choice(len(parameter.values), p=parameter.probabilities)]
            for name, parameter in self.varied.items()
            if isinstance(parameter, Categorical) and parameter.probabilities is not None
        }

    def decode(self, choices: Mapping[str, Choice]) -> Point:
        """Return the point that Optuna's choices stand for, with the constants."""
        values = {name: self.varied[name].decode(choices[name]) for name in self.varied}
        return {**values, **self.constants}

    def example(self) -> Point:
        """Return an example of a point."""
        low = {n: p.low if isinstance(p, Range) else p.grid()[0] for n, p in self.varied.items()}
        return self.decode(low)
