"""The parameters of a sweep, as W&B writes them and as Optuna draws them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from pfl.cli.yaml_file import YamlFile

Drawn: TypeAlias = CategoricalDistribution | FloatDistribution | IntDistribution
# W&B's distributions that Optuna has too, and the keys of each.
_KEYS: Mapping[str, tuple[str, ...]] = {
    **{"constant": ("value",), "categorical": ("values",), "q_uniform": ("min", "max", "q")},
    **dict.fromkeys(("int_uniform", "uniform", "log_uniform_values"), ("min", "max")),
}
_Numbers: TypeAlias = dict[Literal["min", "max", "q"], float]


@dataclass(frozen=True)
class Parameter:
    """A parameter that a sweep searches.

    Attributes:
        drawn: Its distribution.
        values: What the choices of a categorical distribution stand for, in the same order.
    """

    drawn: Drawn
    values: Sequence[Any] = ()

    @classmethod
    def among(cls, values: Sequence[Any]) -> Parameter:
        """Return a choice among values, which Optuna knows as short numbers, texts or JSON."""
        if not values or any(one in values[:place] for place, one in enumerate(values)):
            raise ValueError(f"expected different values, got {values}")
        short = [float(f"{one:.4g}") if isinstance(one, float) else one for one in values]
        known = [json.dumps(one) if isinstance(one, list | dict) else one for one in short]
        alike = any(one in known[:place] for place, one in enumerate(known))
        return cls(CategoricalDistribution([*map(json.dumps, values)] if alike else known), values)

    @property
    def first(self) -> Any:  # noqa: ANN401
        """The first value, or the lowest one."""
        return self.values[0] if self.values else getattr(self.drawn, "low", None)

    def decode(self, choice: Any) -> Any:  # noqa: ANN401
        """Return the value that a choice of Optuna's stands for."""
        if isinstance(self.drawn, CategoricalDistribution):
            return self.values[self.drawn.choices.index(choice)]
        return _rounded(choice) if isinstance(choice, float) else choice


def _rounded(value: float) -> float:
    """Return 0.3 for 3 * 0.1, which is 0.30000000000000004."""
    return float(f"{value:.12g}")


def read_parameter(reader: YamlFile, name: str, content: object, grid: bool) -> Parameter:
    """Return a parameter, which is a choice of one value if it is constant.

    Raises:
        UsageError: It is wrong, or a grid cannot search it.
    """
    path = ("parameters", name)
    keys = reader.formed(content, dict[str, Any], *path)
    if nested := _nested(keys):
        what = f"nested parameters are not read: name them by dotted keys, as {name}.{nested}"
        raise reader.error(what, *path)
    # W&B infers a distribution from the keys.
    kinds = {"value": "constant", "values": "categorical"}
    whole = all(isinstance(keys.get(key), int) for key in ("min", "max"))
    inferred = kinds.get(next(iter(keys), ""), "int_uniform" if whole else "uniform")
    distribution = keys.pop("distribution", inferred)
    if distribution not in _KEYS:
        what = f"{distribution!r} is not supported; choose from {', '.join(_KEYS)}"
        raise reader.error(what, *path, "distribution")
    keys = {"q": 1, **keys} if distribution == "q_uniform" else keys
    if {*keys} != {*_KEYS[distribution]}:
        wrong = [key for key in keys if key not in _KEYS[distribution]]
        what = f"{distribution} has the keys {', '.join(_KEYS[distribution])}"
        raise reader.error(what, *path, *wrong[:1])
    try:
        if distribution == "constant":
            return Parameter.among([keys["value"]])
        if distribution == "categorical":
            return Parameter.among(reader.formed(keys["values"], list[Any], *path, "values"))
        drawn = _range(distribution, **reader.formed(keys, _Numbers, *path))
        return Parameter.among(_all(drawn)) if grid else Parameter(drawn)
    except ValueError as error:
        raise reader.error(str(error), *path) from error


def _nested(keys: Mapping[str, Any]) -> str:
    """Return the name of a parameter within a parameter, which W&B allows; empty for none."""
    known, below = {*chain(*_KEYS.values())}, keys.get("parameters")
    inner = below if isinstance(below, Mapping) else keys
    nested = (key for key, one in inner.items() if isinstance(one, Mapping) and key not in known)
    return next(nested, "")


def _range(distribution: str, min: float, max: float, q: float | None = None) -> Drawn:
    if not all(map(math.isfinite, (min, max, q or 1))) or (q is not None and q <= 0):
        raise ValueError("expected finite numbers, and steps above zero")
    if q is not None:
        # As with W&B, values are multiples of the step; 0.3 / 0.1 is 2.9999999999999996.
        min, max = (
            _rounded(q * of(_rounded(x / q))) for of, x in ((math.ceil, min), (math.floor, max))
        )
    if distribution == "int_uniform" or (q is not None and q == int(q)):
        if not min == int(min) or not max == int(max):
            raise ValueError(f"expected whole numbers, got {min} and {max}")
        return IntDistribution(int(min), int(max), step=int(q or 1))
    return FloatDistribution(min, max, log=distribution == "log_uniform_values", step=q)


def _all(drawn: Drawn) -> list[float]:
    """Return the values of a range; refuse one without steps."""
    if isinstance(drawn, CategoricalDistribution) or drawn.step is None:
        raise ValueError("a grid needs a list of values, whole numbers or steps (q_uniform)")
    count = round((drawn.high - drawn.low) / drawn.step) + 1
    values = [_rounded(drawn.low + number * drawn.step) for number in range(count)]
    return [*map(int, values)] if isinstance(drawn, IntDistribution) else values
