"""The search space of a sweep: its parameters for Optuna and for an experiment."""

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

# What Optuna stores.
Choice: TypeAlias = bool | int | float | str | None
Point: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Categorical:
    """One of some values.

    Args:
        values: Anything that YAML can say.
        probabilities: Of each value, summing to one; ``None`` makes all alike.
    """

    values: Sequence[Any]
    probabilities: Sequence[float] | None = None

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna knows it."""
        return CategoricalDistribution(self.grid())

    def grid(self) -> list[Choice]:
        """All choices; lists and mappings, which Optuna does not store, as JSON."""
        plain = (str, int, float, bool, type(None))
        return [value if isinstance(value, plain) else json.dumps(value) for value in self.values]

    def decode(self, choice: Choice) -> Any:  # noqa: ANN401
        """Return the value that a choice stands for."""
        return self.values[self.grid().index(choice)]


@dataclass(frozen=True)
class Range:
    """A number between two others.

    Args:
        low: Smallest value.
        high: Largest value.
        whole: Only integers are drawn.
        log: Its logarithm is drawn.
        step: Values are its multiples; ``None`` takes any.
    """

    low: float
    high: float
    whole: bool = False
    log: bool = False
    step: float | None = None

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna knows it, which cannot draw a logarithm in steps."""
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
        """The least and the largest k whose multiple of the step lies in the range."""
        low, high = (bound / (self.step or 1) for bound in (self.low, self.high))
        # 0.3 / 0.1 is 2.9999999999999996.
        return math.ceil(low - 1e-9 * abs(low)), math.floor(high + 1e-9 * abs(high))

    def _multiple(self, k: int) -> float:
        # 3 * 0.1 is 0.30000000000000004, which nobody wants to read.
        return float(f"{k * (self.step or 1):.12g}")

    @property
    def empty(self) -> bool:
        """Tell whether no value lies in it."""
        first, last = self._multiples
        return self.low > self.high or (self.step is not None and first > last)

    def grid(self) -> list[Choice] | None:
        """All values, or ``None`` if they cannot be counted."""
        if self.log or (self.step is None and not self.whole):
            return None
        first, last = self._multiples
        return [self.decode(self._multiple(k)) for k in range(first, last + 1)]

    def decode(self, choice: Any) -> Any:  # noqa: ANN401
        """Return the value of a choice, rounded to steps or integers as the range wants."""
        if self.step is not None:
            first, last = self._multiples
            choice = self._multiple(min(max(round(choice / self.step), first), last))
        return int(choice) if self.whole else float(choice)


Parameter: TypeAlias = Categorical | Range


@dataclass(frozen=True)
class Space:
    """All parameters of a sweep.

    Args:
        varied: Those that are searched.
        constants: Those that every point shares.
    """

    varied: Mapping[str, Parameter]
    constants: Point = field(default_factory=dict)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """As Optuna knows them."""
        return {name: parameter.distribution for name, parameter in self.varied.items()}

    @cached_property
    def grids(self) -> dict[str, list[Choice] | None]:
        """All choices of each varied parameter; ``None`` where they cannot be counted."""
        return {name: parameter.grid() for name, parameter in self.varied.items()}

    @property
    def size(self) -> int:
        """Number of points of the grid."""
        return math.prod(len(grid or ()) for grid in self.grids.values())

    def on_grid(self, number: int) -> dict[str, Choice]:
        """Return the choices at a point of the grid, from 0; the last parameter varies fastest."""
        choices: dict[str, Choice] = {}
        for name, grid in reversed(self.grids.items()):
            number, place = divmod(number, len(grid or ()))
            choices[name] = (grid or ())[place]
        return {name: choices[name] for name in self.varied}

    def weighted(self, seed: int) -> dict[str, Choice]:
        """Draws of the parameters that have probabilities, which Optuna does not know."""
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
        """Return some point."""
        low = {n: p.low if isinstance(p, Range) else p.grid()[0] for n, p in self.varied.items()}
        return self.decode(low)
