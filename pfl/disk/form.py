"""Forms: the types that a file's content must have, checked with the place of each mistake.

A form is built from plain types, ``Literal``, ``list``, ``tuple`` (``tuple[int, ...]``, read from a
list), ``dict``, unions, numbers with a minimum (``Annotated[int, Field(ge=1)]``) and frozen
dataclasses, whose fields are the keys that a mapping may have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from pfl.disk.nearest import hint, nearest

# The largest whole number.
_LARGEST = 2**63 - 1
_WORDS: Mapping[Any, str] = {
    **{str: "a text", bool: "true or false", int: "a whole number", float: "a number"},
    **{list: "a list", dict: "keys and values", NoneType: "null"},
}
FormT = TypeVar("FormT")

STRICT = ConfigDict(strict=True, extra="forbid")
"""For pydantic dataclasses that travel: text is not a number, and other keys are refused."""


class FormError(ValueError):
    """A value does not have its form.

    Args:
        keys: The keys that lead to it; indices of items are keys too.
        what: What is wrong.
    """

    def __init__(self, keys: tuple[str, ...], what: str) -> None:
        super().__init__(f"{'.'.join(keys)}: {what}" if keys else what)
        self.keys = keys
        self.what = what


def parsed(text: str, form: type[FormT], *keys: str) -> FormT:
    """Return the record in a JSON text, with the types and ranges that its class declares.

    Args:
        text: The text.
        form: A dataclass of pydantic, with :data:`STRICT`.
        keys: The keys that lead to the record, for messages.

    Raises:
        FormError: The text is not such a record.
    """
    try:
        return TypeAdapter(form).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Messages of a form's validators are in the errors that they raised.
        what = str(first.get("ctx", {}).get("error", first["msg"]))
        places = (*keys, *map(str, first["loc"]))
        raise FormError(places, f"{what}, got {_shown(first['input'])}") from error


def formed(value: Any, form: Any, keys: tuple[str, ...] = ()) -> Any:  # noqa: ANN401
    """Convert a plain value of YAML or JSON to a form: mappings become the form's dataclasses.

    A null key of a dataclass gets its default. ``keys`` lead to the value, for messages.

    Raises:
        FormError: The value or a part of it does not have its form.

    Example:
        >>> formed({"rounds": ["3"]}, dict[str, list[int]])
        Traceback (most recent call last):
        pfl.disk.form.FormError: rounds.0: expected a whole number, got '3'
    """
    if not _fits(value, form):
        near = nearest(value, map(str, get_args(form))) if isinstance(value, str) else ""
        raise FormError(keys, f"expected {_said(form)}, got {_shown(value)}{near}")
    inner = get_args(form)
    if get_origin(form) in (Union, UnionType):
        return formed(value, next(one for one in inner if _fits(value, one)), keys)
    if get_origin(form) is list:
        return [formed(item, inner[0], (*keys, str(n))) for n, item in enumerate(value)]
    if get_origin(form) is tuple:
        return tuple(formed(item, inner[0], (*keys, str(n))) for n, item in enumerate(value))
    if get_origin(form) is dict:
        if get_origin(inner[0]) is Literal:
            _check_keys(value, get_args(inner[0]), keys)
        return {str(k): formed(item, inner[1], (*keys, str(k))) for k, item in value.items()}
    return _record(value, form, keys) if is_dataclass(form) else value


def _record(content: Mapping[Any, Any], form: Any, keys: tuple[str, ...]) -> Any:  # noqa: ANN401
    types, values = get_type_hints(form, include_extras=True), {}
    optional = [f.name for f in fields(form) if {f.default, f.default_factory} != {MISSING}]
    _check_keys(content, types, keys)
    for name, item in content.items():
        if item is not None or name not in optional:
            values[name] = formed(item, types[name], (*keys, name))
    for name in types:
        if name not in values and name not in optional:
            raise FormError(keys, f"the key {name!r} is missing")
    return form(**values)


def _check_keys(content: Collection[Any], known: Collection[str], keys: tuple[str, ...]) -> None:
    for name in content:
        if name not in known:
            what = f"this key is not supported{hint(str(name), known)}"
            raise FormError((*keys, str(name)), what)


def _fits(value: Any, form: Any) -> bool:  # noqa: ANN401
    """Return ``True`` if a value has the outer type of a form, whatever its content."""
    origin, inner = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Annotated:
        return _fits(value, inner[0]) and value >= _least(form)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in inner)
    if form in (int, float) and type(value) is int:
        return abs(value) <= _LARGEST
    if form is int:
        return False
    outer = _outer(form)
    return outer is Any or isinstance(value, outer)


def _said(form: Any) -> str:  # noqa: ANN401
    """Describe a form."""
    origin, inner = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        return " or ".join(_said(one) for one in inner if one is not NoneType)
    if origin is Annotated:
        return f"{_said(inner[0])}, at least {_least(form)}"
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    return _WORDS[_outer(form)]


def _least(form: Any) -> float:  # noqa: ANN401
    """Return the minimum in ``Annotated[int, Field(ge=1)]``."""
    (bound,) = form.__metadata__[0].metadata
    least: float = bound.ge
    return least


def _outer(form: Any) -> Any:  # noqa: ANN401
    """Return the YAML or JSON type of a value that has a form."""
    outer = dict if is_dataclass(form) else get_origin(form) or form
    return list if outer is tuple else outer


def _shown(value: Any) -> str:  # noqa: ANN401
    try:
        return repr(value)[:60]
    except ValueError:  # a whole number with thousands of digits
        return f"a {type(value).__name__}"
