"""The search space of a sweep: its parameters, as W&B writes them and as Optuna draws them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from pfl.cli.yaml_file import YamlFile
from pfl.disk.nearest import hint

# Values that Optuna can store.
Choice: TypeAlias = bool | int | float | str | None
Point: TypeAlias = dict[str, Any]


# The forms of a parameter; see pfl.disk.form.
@dataclass(frozen=True, kw_only=True)
class _ConstantForm:
    distribution: str | None = None
    value: Any


@dataclass(frozen=True, kw_only=True)
class _ChoiceForm:
    distribution: str | None = None
    values: list[Any]


@dataclass(frozen=True, kw_only=True)
class _BoundsForm:
    distribution: str | None = None
    min: float
    max: float


@dataclass(frozen=True, kw_only=True)
class _StepsForm(_BoundsForm):
    q: float = 1


# W&B's distributions that Optuna supports.
_FORMS = {
    **{"constant": _ConstantForm, "categorical": _ChoiceForm, "q_uniform": _StepsForm},
    **dict.fromkeys(("int_uniform", "uniform", "log_uniform_values"), _BoundsForm),
}
# Distributions that W&B infers from the keys.
_INFERRED = {"value": "constant", "values": "categorical", "min": "uniform", "max": "uniform"}


@dataclass(frozen=True)
class Space:
    """All parameters of a sweep.

    Args:
        varied: Distributions of the parameters that are searched.
        values: What the choices of categorical parameters stand for, in the same order.
        constants: Parameters that are the same for every point.
    """

    varied: Mapping[str, BaseDistribution]
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    constants: Point = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of points of the grid."""
        return math.prod(len(grid(drawn) or ()) for drawn in self.varied.values())

    def on_grid(self, number: int) -> dict[str, Choice]:
        """Return the choices at a point of the grid, from 0; the last parameter varies fastest."""
        grids = {name: grid(drawn) or [] for name, drawn in self.varied.items()}
        places = np.unravel_index(number, [len(choices) for choices in grids.values()])
        return {name: grids[name][place] for name, place in zip(grids, places, strict=True)}

    def decode(self, choices: Mapping[str, Choice]) -> Point:
        """Return the point that Optuna's choices stand for, with the constants."""
        point = {name: self.decode_one(name, choices[name]) for name in self.varied}
        return {**point, **self.constants}

    def decode_one(self, name: str, choice: Any) -> Any:  # noqa: ANN401
        """Return the value of one parameter."""
        drawn = self.varied[name]
        if isinstance(drawn, CategoricalDistribution):
            return self.values[name][drawn.choices.index(choice)]
        return _rounded(choice) if isinstance(drawn, FloatDistribution) and drawn.step else choice

    def example(self) -> Point:
        """Return an example of a point."""
        return self.decode(
            {
                name: drawn.choices[0] if isinstance(drawn, CategoricalDistribution) else drawn.low
                for name, drawn in self.varied.items()
                if isinstance(drawn, CategoricalDistribution | FloatDistribution | IntDistribution)
            }
        )


def grid(drawn: BaseDistribution) -> list[Choice] | None:
    """Return all choices of a parameter, or ``None`` if they cannot be enumerated."""
    if isinstance(drawn, CategoricalDistribution):
        return [*drawn.choices]
    if isinstance(drawn, IntDistribution):
        return [*range(drawn.low, drawn.high + 1, drawn.step)]
    if isinstance(drawn, FloatDistribution) and drawn.step is not None:
        count = round((drawn.high - drawn.low) / drawn.step) + 1
        return [_rounded(drawn.low + number * drawn.step) for number in range(count)]
    return None


def _rounded(value: float) -> float:
    """Return 0.3 for 3 * 0.1, which is 0.30000000000000004."""
    return float(f"{value:.12g}")


def read_space(reader: YamlFile, parameters: Mapping[str, Any], method: str) -> Space:
    """Read the search space.

    Raises:
        UsageError: A parameter is wrong, or the method cannot search it.
    """
    varied, values, constants = dict[str, BaseDistribution](), dict[str, Sequence[Any]](), Point()
    for name, content in parameters.items():
        path = ("parameters", name)
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII):
            raise reader.error("this is not a valid name of a parameter", *path)
        distribution = _distribution(reader, reader.formed(content, dict[str, Any], *path), path)
        match reader.formed(content, _FORMS[distribution], *path):
            case _ConstantForm(value=value):
                constants[name] = value
                continue
            case _ChoiceForm(values=choices):
                values[name] = choices
                varied[name] = _categorical(reader, choices, path)
            case bounds:
                varied[name] = _range(reader, distribution, bounds, path)
        if method == "grid" and grid(varied[name]) is None:
            what = "a grid needs a list of values, whole numbers or steps (q_uniform)"
            raise reader.error(what, *path)
    if not varied:
        raise reader.error("there is nothing to search: all are constants", "parameters")
    return Space(varied, values, constants)


def _distribution(reader: YamlFile, keys: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Return the given distribution, or the one that W&B infers from the keys."""
    inferred = (_INFERRED[key] for key in _INFERRED if key in keys)
    distribution = keys.get("distribution") or next(inferred, None)
    if distribution is None:
        for key in keys:
            raise reader.error(f"this key is not supported{hint(key, _INFERRED)}", *path, key)
        raise reader.error("expected value, values, or min and max", *path)
    if distribution not in _FORMS:
        what = f"{distribution!r} is not supported; choose from {', '.join(_FORMS)}"
        raise reader.error(what, *path, "distribution")
    whole = isinstance(keys.get("min"), int) and isinstance(keys.get("max"), int)
    return "int_uniform" if whole and "distribution" not in keys else str(distribution)


def _range(
    reader: YamlFile, distribution: str, form: _BoundsForm, path: tuple[str, ...]
) -> BaseDistribution:
    low, high, step = form.min, form.max, getattr(form, "q", None)
    if not all(map(math.isfinite, (low, high, step or 0))):
        raise reader.error(f"expected finite numbers, got {low}, {high} and {step}", *path)
    if distribution == "log_uniform_values" and low <= 0:
        raise reader.error(f"a logarithm needs a positive number, got {low}", *path, "min")
    if step is not None:
        if step <= 0:
            raise reader.error(f"expected a positive number, got {step}", *path, "q")
        # As with W&B, values are multiples of the step; 0.3 / 0.1 is 2.9999999999999996.
        low = _rounded(step * math.ceil(_rounded(low / step)))
        high = _rounded(step * math.floor(_rounded(high / step)))
    if low > high:
        raise reader.error(f"there is no value between {form.min} and {form.max}", *path)
    if distribution == "int_uniform" or (step is not None and step == int(step)):
        if not (low == int(low) and high == int(high)):
            raise reader.error(f"expected whole numbers, got {low} and {high}", *path)
        return IntDistribution(int(low), int(high), step=int(step or 1))
    return FloatDistribution(low, high, log=distribution == "log_uniform_values", step=step)


def _categorical(
    reader: YamlFile, values: Sequence[Any], path: tuple[str, ...]
) -> CategoricalDistribution:
    """Return a choice; lists and mappings, which Optuna cannot store, are chosen as JSON."""
    if not values:
        raise reader.error("expected a list, got []", *path, "values")
    if any(value in values[:place] for place, value in enumerate(values)):
        raise reader.error(f"a value is given twice: {values}", *path, "values")
    plain = (str, int, float, bool, type(None))
    return CategoricalDistribution(
        [value if isinstance(value, plain) else json.dumps(value) for value in values]
    )
