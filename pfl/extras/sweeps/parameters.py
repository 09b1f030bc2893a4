"""Reading and checking the ``parameters`` of a sweep file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pfl.cli.yaml_file import YamlFile
from pfl.disk.form import Least
from pfl.disk.nearest import hint
from pfl.extras.sweeps.space import Categorical, Parameter, Range, Space


# The forms of a parameter; see pfl.disk.form.
@dataclass(frozen=True, kw_only=True)
class _ConstantForm:
    distribution: str | None = None
    value: Any


@dataclass(frozen=True, kw_only=True)
class _ChoiceForm:
    distribution: str | None = None
    values: list[Any]
    probabilities: list[Annotated[float, Least(0)]] | None = None


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
    "constant": _ConstantForm,
    **dict.fromkeys(("categorical", "categorical_w_probabilities"), _ChoiceForm),
    **dict.fromkeys(("int_uniform", "uniform", "log_uniform", "log_uniform_values"), _BoundsForm),
    **dict.fromkeys(("q_uniform", "q_log_uniform", "q_log_uniform_values"), _StepsForm),
}
# Distributions that W&B infers from the keys.
_INFERRED = {"value": "constant", "values": "categorical", "min": "uniform", "max": "uniform"}


def read_space(reader: YamlFile, parameters: Mapping[str, Any], method: str) -> Space:
    """Read the search space.

    Raises:
        UsageError: A parameter is wrong, or the method cannot search it.
    """
    varied: dict[str, Parameter] = {}
    constants: dict[str, Any] = {}
    for path, content in _flat(reader, parameters, ("parameters",)):
        name = ".".join(part for part in path if part != "parameters")
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII):
            raise reader.error("this is not a valid name of a parameter", *path)
        if name in varied or name in constants:
            raise reader.error(f"{name} is given twice", *path)
        distribution = _distribution(reader, reader.formed(content, dict[str, Any], *path), path)
        match reader.formed(content, _FORMS[distribution], *path):
            case _ConstantForm(value=value):
                constants[name] = value
            case _ChoiceForm() as choice:
                if choice.probabilities is not None and method != "random":
                    what = f"{method} does not support probabilities, only random does"
                    raise reader.error(what, *path)
                varied[name] = _categorical(reader, choice, path)
            case bounds:
                varied[name] = _range(reader, distribution, bounds, path)
        if method == "grid" and name in varied and varied[name].grid() is None:
            what = "a grid needs a list of values, whole numbers or steps (q_uniform)"
            raise reader.error(what, *path)
    if not varied:
        raise reader.error("there is nothing to search: all are constants", "parameters")
    return Space(varied, constants)


def _flat(
    reader: YamlFile, group: Mapping[str, Any], at: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each parameter of a group, and of the groups in it, with its keys."""
    for key, content in group.items():
        if isinstance(content, dict) and [*content] == ["parameters"]:
            inner = (*at, key, "parameters")
            nested = reader.formed(content["parameters"], dict[str, Any], *inner)
            yield from _flat(reader, nested, inner)
        else:
            yield (*at, key), content


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


def _range(reader: YamlFile, distribution: str, form: _BoundsForm, path: tuple[str, ...]) -> Range:
    low, high, step = form.min, form.max, getattr(form, "q", None)
    for value in (low, high, step or 0):
        if not math.isfinite(value):
            raise reader.error(f"expected numbers, got {value}", *path)
    log = "log_uniform" in distribution
    if distribution.endswith("log_uniform"):
        low, high = math.exp(low), math.exp(high)
    if log and low <= 0:
        raise reader.error(f"a logarithm needs a positive number, got {low}", *path, "min")
    if step is not None and step <= 0:
        raise reader.error(f"expected a positive number, got {step}", *path, "q")
    whole = distribution == "int_uniform" if step is None else step == int(step)
    if distribution == "int_uniform" and not (low == int(low) and high == int(high)):
        raise reader.error(f"expected whole numbers, got {low} and {high}", *path)
    drawn = Range(low, high, whole, log, step)
    if drawn.empty:
        raise reader.error(f"there is no value between {low} and {high}", *path)
    return drawn


def _categorical(reader: YamlFile, form: _ChoiceForm, path: tuple[str, ...]) -> Categorical:
    values, weights = form.values, form.probabilities
    if not values:
        raise reader.error("expected a list, got []", *path, "values")
    if any(value in values[:place] for place, value in enumerate(values)):
        raise reader.error(f"a value is given twice: {values}", *path, "values")
    if weights is None:
        return Categorical(values)
    if len(weights) != len(values) or sum(weights) <= 0:
        what = f"expected {len(values)} numbers of at least 0, one for each value, got {weights!r}"
        raise reader.error(what, *path, "probabilities")
    return Categorical(values, [weight / sum(weights) for weight in weights])
