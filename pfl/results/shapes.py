"""Shapes of the values in a run's JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl.disk.reading import FileError

# A whole number of a file is no larger.
_LARGEST = 2**63 - 1
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def check(content: Mapping[str, Any], shape: Mapping[str, Any], path: Path) -> None:
    """Check those values of a mapping that a shape names; any may be missing or null.

    Args:
        content: The mapping.
        shape: By keys: a type of plain values; a list of one shape, for a list of such values; a
            dictionary of one shape under ``str``, for any keys; or a dictionary of further keys.
        path: The file, for messages.

    Raises:
        FileError: A value is not of its shape.
    """
    for key, wanted in shape.items():
        if content.get(key) is not None:
            _check(content[key], wanted, f"{path}: {key}")


def _check(value: Any, shape: Any, where: str) -> None:  # noqa: ANN401
    if isinstance(shape, list):
        _refuse(isinstance(value, list), value, "a list", where)
        for number, item in enumerate(value):
            _check(item, shape[0], f"{where}.{number}")
    elif isinstance(shape, Mapping):
        _refuse(isinstance(value, dict), value, "keys and values", where)
        for key, item in value.items():
            if (inner := shape.get(str, shape.get(key))) is not None:
                _check(item, inner, f"{where}.{key}")
    else:
        _refuse(_is(value, shape), value, _WORDS[shape], where)


def _is(value: Any, kind: type) -> bool:  # noqa: ANN401
    if kind is float:
        # What was not measured, or had no bounds, is stored as NaN or infinity.
        return _is(value, int) or isinstance(value, float)
    if kind is int:
        return type(value) is int and abs(value) <= _LARGEST
    return isinstance(value, kind)


def _refuse(right: bool, value: Any, wanted: str, where: str) -> None:  # noqa: ANN401
    if not right:
        shown = repr(value) if not isinstance(value, int) else f"{type(value).__name__}"
        raise FileError(f"{where} must be {wanted}, not {shown[:60]}")
