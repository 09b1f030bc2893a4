"""Checks of arguments, with one-line errors that name the given value and the right ones."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from inspect import isfunction
from numbers import Real
from types import CodeType, FrameType, NoneType, SimpleNamespace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pfl.core.ranges import Range, ranges_in
from pfl.imports import hints

_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def not_negative(**arguments: float | None) -> None:
    """Refuse numbers below zero and NaN; ``None`` passes.

    Raises:
        ValueError: A number is negative or NaN.

    Example:
        >>> not_negative(mu=0.0, epochs=None)
    """
    within("[0, inf]", **arguments)


def positive(**arguments: float | None) -> None:
    """Refuse numbers that are not above zero; ``None`` passes.

    Raises:
        ValueError: A number is not above zero.
    """
    within("(0, inf]", **arguments)


def at_least_one(**arguments: int | None) -> None:
    """Refuse numbers below one; ``None`` passes.

    Raises:
        ValueError: A number is below one.
    """
    within("[1, inf]", **arguments)


def finite(**arguments: float | None) -> None:
    """Refuse infinity and NaN; ``None`` passes.

    Raises:
        ValueError: A number is infinite or NaN.
    """
    for name, value in arguments.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value}")


def within(interval: str, **arguments: float | None) -> None:
    """Refuse numbers outside an interval, and NaN; ``None`` passes.

    Args:
        interval: As in :class:`~pfl.core.ranges.Range`.
        arguments: The numbers by name.

    Raises:
        ValueError: A number is outside the interval.

    Example:
        >>> within("(0, 1]", lr_decay=1.0)
    """
    for name, value in arguments.items():
        Range(interval).check(name, value)


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


def check_arguments(made: object) -> None:
    """Check what the constructors of an object were given: words of a ``Literal``, and ranges.

    The constructor of a base class calls it. Every constructor that is on its way to the base is
    checked, that of the object's own class first, so that constructors only assign.

    Raises:
        ValueError: A word is unknown, or a number is outside its range; the message lists the words
            or has the range.
        TypeError: An argument with a range got something else than a number.
    """
    owners = {code: base for base in type(made).__mro__ if (code := _code(base)) is not None}
    given: list[tuple[type, Mapping[str, object]]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in owners:
            given.append((owners[frame.f_code], frame.f_locals))
        frame = frame.f_back
    for owner, values in reversed(given):
        for name, hint in _annotations(owner).items():
            if name in values:
                _check(name, values[name], hint)


def words(owner: type) -> dict[str, tuple[object, ...]]:
    """Return the words that each argument of a class may be, where it is one of some words."""
    return {n: found for n, hint in all_annotations(owner).items() if (found := _words_in(hint))}


def ranges(owner: type) -> dict[str, Range]:
    """Return the range of each argument of a class that declares one.

    Example:
        >>> from pfl.core.ranges import NotNegative
        >>> class Pull:
        ...     def __init__(self, mu: NotNegative[float] = 0.01, epochs: int = 1) -> None: ...
        >>> ranges(Pull)
        {'mu': Range(interval='[0, inf]')}
    """
    found = {name: [*ranges_in(hint)] for name, hint in all_annotations(owner).items()}
    return {name: several[0] for name, several in found.items() if several}


def _check(name: str, value: object, hint: Any) -> None:  # noqa: ANN401
    if known := _words_in(hint):
        one_of(name, value, known)
    arms = _arms(hint)
    if value is None and NoneType in arms:
        return
    for allowed in ranges_in(hint):
        allowed.check(name, value)
    # Of an argument that may also be a word, for instance, other values are left to its class.
    if not isinstance(value, Real) and all(arm is NoneType or [*ranges_in(arm)] for arm in arms):
        raise TypeError(f"{name} must be a number, got {value!r}")


def _words_in(hint: Any) -> tuple[object, ...]:  # noqa: ANN401
    """Return the words of an annotation that is a ``Literal``, or a union of some and ``None``."""
    arms = [*map(hints.bare, _arms(hint))]
    others = [arm for arm in arms if get_origin(arm) is not Literal]
    if others not in ([], [NoneType]) or others == arms:
        return ()
    return tuple(word for arm in arms for word in get_args(arm) or (None,))


def _arms(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the alternatives of an annotation, each with what stands beside all of them."""
    if get_origin(hint) is not Annotated:
        return hints.parts(hint)
    inner, *beside = get_args(hint)
    return tuple(arm if arm is NoneType else Annotated[(arm, *beside)] for arm in _arms(inner))


def all_annotations(owner: type) -> dict[str, Any]:
    """Return the annotations of the constructors of a class and its bases; its own win."""
    by_name: dict[str, Any] = {}
    for base in reversed(owner.__mro__):
        by_name |= _annotations(base)
    return by_name


@cache
def _annotations(owner: type) -> Mapping[str, Any]:
    """Return the annotations of the constructor that a class itself defines, by argument.

    One that names types which are imported for type checkers alone is left out.
    """
    start, found = inspect.unwrap(vars(owner).get("__init__", owner)), dict[str, Any]()
    annotations = dict(getattr(start, "__annotations__", {}) if isfunction(start) else {})
    annotations.pop("return", None)
    for name, hint in annotations.items():
        alone = SimpleNamespace(__annotations__={name: hint})
        with suppress(NameError, AttributeError, TypeError):
            found |= get_type_hints(alone, start.__globals__, include_extras=True)
    return found


def _code(owner: type) -> CodeType | None:
    start = inspect.unwrap(vars(owner).get("__init__", owner))
    return start.__code__ if isfunction(start) else None


def needs_public(who: str) -> str:
    """Return the message about a method whose public data are missing."""
    return (
        f"{who} needs public data, and the data have none: set data.public to a data set that "
        "belongs to no client"
    )


def needs_validation(monitor: str) -> str:
    """Return the message about a score on validation data, of which there are none."""
    return (
        f"EarlyStopping monitors {monitor!r}, and there are no validation data: set "
        "data.val_fraction, such as 0.1, or monitor a score on test data"
    )


def no_option(task: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an option of a loss that a task does not have."""
    return f"{task} has no option {name!r}, only {', '.join(known) or 'its own loss'}"


def check_overrides(kind: type, *bases: type) -> None:
    """Refuse a class that takes a name of a base for something else, which would be called for it.

    A method takes the arguments of the base's method at the same places, and may have more with
    defaults; what is a value in the base is no method.

    Args:
        kind: The class.
        bases: Bases whose names count, the last one is the base of the others.

    Raises:
        TypeError: There is such a name.
    """
    # What the bases' own base has is called as that one says.
    inherited = {name for base in bases[-1].__mro__[1:] for name in vars(base)}
    known = {name: value for base in reversed(bases) for name, value in vars(base).items()}
    for name, own in vars(kind).items():
        theirs, given = known.get(name), getattr(own, "__func__", own)
        right = getattr(theirs, "__func__", theirs)
        if name not in known.keys() - inherited or not isfunction(given):
            continue
        what = f"{kind.__name__}.{name} takes the place of {bases[0].__name__}.{name}"
        if not isfunction(right):
            raise TypeError(f"{what}, which is a value and no method: give it another name")
        if not _stands_in(given, right):
            raise TypeError(
                f"{what}{inspect.signature(right)} with the arguments {inspect.signature(given)}: "
                "give it another name, or the same arguments"
            )


def _stands_in(own: Callable[..., Any], right: Callable[..., Any]) -> bool:
    """Return whether a method can be called as another one is, by the order of its arguments."""
    wanted = [p for p in inspect.signature(right).parameters.values() if p.kind in _PLACED]
    asked = [parameter for parameter in wanted if parameter.default is parameter.empty]
    try:
        inspect.signature(own).bind(*asked)
    except TypeError:
        return False
    places = {name: place for place, name in enumerate(inspect.signature(own).parameters)}
    return all(places.get(one.name, place) == place for place, one in enumerate(asked))
