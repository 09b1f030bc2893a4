"""Checks of arguments, with one-line errors that name the given value and the right ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints


def not_negative(**arguments: float | None) -> None:
    """Refuse numbers below zero and NaN; ``None`` passes.

    Raises:
        ValueError: A number is negative or NaN.

    Example:
        >>> not_negative(mu=0.0, epochs=None)
    """
    _check(arguments, lambda value: value >= 0, "must not be negative")


def positive(**arguments: float | None) -> None:
    """Refuse numbers that are not above zero; ``None`` passes.

    Raises:
        ValueError: A number is not above zero.
    """
    _check(arguments, lambda value: value > 0, "must be positive")


def finite(**arguments: float | None) -> None:
    """Refuse infinity and NaN; ``None`` passes.

    Raises:
        ValueError: A number is infinite or NaN.
    """
    _check(arguments, math.isfinite, "must be a finite number")


def at_least_one(**arguments: int | None) -> None:
    """Refuse numbers below one; ``None`` passes.

    Raises:
        ValueError: A number is below one.
    """
    _check(arguments, lambda value: value >= 1, "must be at least 1")


def within(interval: str, **arguments: float | None) -> None:
    """Refuse numbers outside an interval, and NaN; ``None`` passes.

    Args:
        interval: In mathematical notation: ``(0, 1]`` includes 1 but not 0.
        arguments: The numbers by name.

    Raises:
        ValueError: A number is outside the interval.

    Example:
        >>> within("(0, 1]", lr_decay=1.0)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))

    def inside(value: float) -> bool:
        above = value >= low if interval[0] == "[" else value > low
        return above and (value <= high if interval[-1] == "]" else value < high)

    _check(arguments, inside, f"must lie in {interval}")


def _check(
    arguments: Mapping[str, float | None], right: Callable[[float], bool], requirement: str
) -> None:
    for name, value in arguments.items():
        if value is not None and not right(value):
            raise ValueError(f"{name} {requirement}, got {value}")


def tuples(**arguments: object) -> None:
    """Refuse names or patterns that are not a tuple: each letter of a string would be a pattern.

    Raises:
        ValueError: An argument is something else.

    Example:
        >>> tuples(trains=("net.head.*",))
    """
    for name, value in arguments.items():
        if not isinstance(value, tuple):
            raise ValueError(f"{name} must be a tuple, such as ('net.head.*',), got {value!r}")


def one_of(argument: str, value: object, known: tuple[object, ...]) -> None:
    """Refuse a value that is not among the known ones.

    Raises:
        ValueError: The value is not known; the message lists the known ones.
    """
    if value not in known:
        listed = ", ".join(map(str, known))
        raise ValueError(f"{argument} must be one of {listed}, got {value!r}")


def known_words(owner: type, values: Mapping[str, Any]) -> None:
    """Refuse values outside the ``Literal`` types in the constructors of a class and its bases.

    Args:
        owner: The class; arguments annotated as a ``Literal`` (or ``None``) are checked.
        values: Values by argument name.

    Raises:
        ValueError: A value is not allowed; the message lists the allowed ones.
    """
    for name, known in words(owner).items():
        if name in values:
            one_of(name, values[name], known)


def words(owner: type) -> dict[str, tuple[object, ...]]:
    """Return the allowed values of each argument that :func:`known_words` checks."""
    by_name: dict[str, tuple[object, ...]] = {}
    for base in reversed(owner.__mro__):
        if "__init__" not in vars(base):
            continue
        try:
            hints = get_type_hints(vars(base)["__init__"])
        except (NameError, TypeError):
            # The annotations name types that are imported only for the type checker.
            continue
        for name, hint in hints.items():
            parts = (hint,) if get_origin(hint) is Literal else get_args(hint)
            if parts and all(part is NoneType or get_origin(part) is Literal for part in parts):
                groups = [get_args(part) or (None,) for part in parts]
                by_name[name] = tuple(word for group in groups for word in group)
    return by_name
