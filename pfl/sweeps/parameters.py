"""Reading and checking the ``parameters`` of a sweep file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pfl.cli.yaml_file import YamlFile
from pfl.sweeps.space import Categorical, Parameter, Range, Space

# W&B's distributions that Optuna supports, with their keys.
_KEYS = {
    "constant": ("value",),
    "categorical": ("values",),
    "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": ("min", "max"),
    "uniform": ("min", "max"),
    "q_uniform": ("min", "max", "q"),
    "log_uniform": ("min", "max"),
    "log_uniform_values": ("min", "max"),
    "q_log_uniform": ("min", "max", "q"),
    "q_log_uniform_values": ("min", "max", "q"),
}
_ALL_KEYS = ("distribution", "parameters", *dict.fromkeys(sum(_KEYS.values(), ())))
_OPTIONAL = ("q",)


def read_space(reader: YamlFile, content: Mapping[str, Any], method: str) -> Space:
    """Read the search space.

    Raises:
        UsageError: A parameter is wrong, or the method cannot search it.
    """
    varied: dict[str, Parameter] = {}
    constants: dict[str, Any] = {}
    _walk(reader, content, ("parameters",), varied, constants)
    for name, parameter in varied.items():
        at = ("parameters", name)
        if method == "grid" and parameter.grid() is None:
            what = "a grid needs a list of values, whole numbers or steps (q_uniform)"
            raise reader.error(what, *at)
        weighted = isinstance(parameter, Categorical) and parameter.probabilities is not None
        if weighted and method != "random":
            raise reader.error(f"{method} does not support probabilities, only random does", *at)
    if not varied:
        raise reader.error("there is nothing to search: all are constants", "parameters")
    return Space(varied, constants)


def _walk(
    reader: YamlFile,
    content: Mapping[str, Any],
    at: tuple[str, ...],
    varied: dict[str, Parameter],
    constants: dict[str, Any],
) -> None:
    """Read a group of parameters; names of nested groups become dotted names."""
    for key in (group := reader.mapping(content, *at)):
        path = (*at, str(key))
        given = reader.mapping(group, *path)
        name = ".".join(part for part in path if part != "parameters")
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII):
            raise reader.error("this is not a valid name of a parameter", *path)
        if "parameters" in given:
            reader.check_keys(given, ("parameters",), *path)
            _walk(reader, given, (*path, "parameters"), varied, constants)
        elif name in varied or name in constants:
            raise reader.error(f"{name} is given twice", *path)
        elif (kind := _kind(reader, given, path)) == "constant":
            constants[name] = given["value"]
        else:
            varied[name] = _parameter(reader, kind, given, path)


def _kind(reader: YamlFile, given: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Return the given distribution, or the one that W&B infers from the keys."""
    kind = given.get("distribution")
    if kind is not None and kind not in _KEYS:
        what = f"{kind!r} is not supported; choose from {', '.join(_KEYS)}"
        raise reader.error(what, *path, "distribution")
    reader.check_keys(given, _ALL_KEYS, *path)
    if kind in (None, "categorical") and "probabilities" in given:
        kind = "categorical_w_probabilities"
    if kind is None:
        bounds = [given.get("min"), given.get("max")]
        whole = all(isinstance(bound, int) for bound in bounds)
        implied = {"value": "constant", "values": "categorical"}
        implied |= dict.fromkeys(("min", "max"), "int_uniform" if whole else "uniform")
        kind = next((implied[key] for key in implied if key in given), None)
    if kind is None:
        raise reader.error("expected value, values, or min and max", *path)
    for key in given:
        if key not in ("distribution", *_KEYS[kind]):
            raise reader.error(f"the distribution {kind} does not have this key", *path, key)
    for key in _KEYS[kind]:
        if key not in given and key not in _OPTIONAL:
            raise reader.error(f"the distribution {kind} needs {key}", *path)
    return str(kind)


def _parameter(
    reader: YamlFile, kind: str, given: Mapping[str, Any], path: tuple[str, ...]
) -> Parameter:
    if "values" in given:
        return _categorical(reader, given, path)
    for key in ("min", "max", "q"):
        value = given.get(key, 1)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise reader.error(f"expected a number, got {value!r}", *path, key)
    low, high, step = given["min"], given["max"], given.get("q", 1)
    log, exponents = "log_uniform" in kind, kind.endswith("log_uniform")
    if exponents:
        low, high = math.exp(low), math.exp(high)
    if log and low <= 0:
        raise reader.error(f"a logarithm needs a positive number, got {low}", *path, "min")
    if kind.startswith("q_"):
        if step <= 0:
            raise reader.error(f"expected a positive number, got {step}", *path, "q")
        parameter = Range(low, high, whole=step == int(step), log=log, step=step)
    elif kind == "int_uniform" and not (low == int(low) and high == int(high)):
        raise reader.error(f"expected whole numbers, got {low} and {high}", *path)
    else:
        parameter = Range(low, high, whole=kind == "int_uniform", log=log)
    if parameter.empty:
        raise reader.error(f"there is no value between {low} and {high}", *path)
    return parameter


def _categorical(reader: YamlFile, given: Mapping[str, Any], path: tuple[str, ...]) -> Categorical:
    values, weights = given["values"], given.get("probabilities")
    if not isinstance(values, list) or not values:
        raise reader.error(f"expected a list, got {values!r}", *path, "values")
    if any(value in values[:place] for place, value in enumerate(values)):
        raise reader.error(f"a value is given twice: {values}", *path, "values")
    if weights is None:
        return Categorical(values)
    numbers = isinstance(weights, list) and all(isinstance(w, int | float) for w in weights)
    if not numbers or len(weights) != len(values) or min(weights) < 0 or sum(weights) <= 0:
        what = f"expected {len(values)} numbers of at least 0, one for each value, got {weights!r}"
        raise reader.error(what, *path, "probabilities")
    return Categorical(values, [weight / sum(weights) for weight in weights])
