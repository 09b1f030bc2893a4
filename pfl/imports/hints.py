"""The types that classes and functions declare for their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

# Types of plain values: an argument that declares only these takes no objects.
_VALUES = (type(None), bool, int, float, complex, str, bytes)
_PLAIN = (*_VALUES, object, list, tuple, dict, set)
MAPPINGS, CALLABLES = (dict, Mapping), (Callable, type)
# Types whose parameters are the types of their values.
_CONTAINERS = (list, tuple, set, dict, Sequence, Mapping)


@cache
def declared(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the declared types of the arguments of a class or a function.

    They include arguments that it passes on to its bases or to a function.
    """
    names, parser = _arguments(target)
    types = types_of(parser)
    return {name: types.get(name) for name in names}


@cache
def defaults(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the default values of the arguments of a class or a function, if any."""
    actions = _arguments(target)[1]._actions
    return {action.dest: action.default for action in actions if not action.required}


@cache
def _arguments(target: Callable[..., Any]) -> tuple[Sequence[str], ArgumentParser]:
    """Return the names of the arguments of a class or a function, and a parser of them."""
    # Imported here because only code that builds objects from plain values needs it.
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    return add(target, fail_untyped=False), parser


def types_of(parser: ArgumentParser) -> dict[str, Any]:
    """Return the declared types of a parser's arguments, where they are known."""
    pairs = ((action.dest, getattr(action, "_typehint", None)) for action in parser._actions)
    return {name: hint for name, hint in pairs if hint is not None and not name.endswith(".help")}


def classes(hint: Any) -> Iterator[type]:
    """Yield the classes of objects that fit a type; for a factory, those that it returns."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType, *_CONTAINERS):
        for item in inner:
            yield from classes(item)
    elif not {Callable, type}.isdisjoint((origin, hint)):
        yield from classes(inner[-1] if inner else None)
    elif origin is not None and origin is not Literal:
        yield from classes(origin)
    elif inspect.isclass(hint) and hint not in _PLAIN and hint is not Any:
        yield hint


def takes_null(hint: Any) -> bool:
    """Return ``True`` if a declared type allows null or any value, or is missing."""
    return hint in (None, Any, object) or any(one in (None, NoneType) for one in get_args(hint))


def takes(hint: Any, types: Collection[Any]) -> bool:
    """Return ``True`` if a declared type is one of some types, or a container of them."""
    origin = get_origin(hint)
    if origin in types or hint in types:
        return True
    within = origin in (Union, UnionType, *_CONTAINERS)
    return within and any(takes(part, types) for part in get_args(hint))


def values_of(hint: Any) -> Any:
    """Return the type of the values of a declared mapping."""
    if get_origin(hint) in MAPPINGS:
        return get_args(hint)[1]
    inner = [values_of(part) for part in get_args(hint) if takes(part, MAPPINGS)]
    return reduce(or_, inner) if inner else None


def is_plain(hint: Any) -> bool:
    """Return ``True`` if a declared type has only text, numbers, words or containers of them."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, *_CONTAINERS):
        return all(part is ... or is_plain(part) for part in get_args(hint))
    enumerated = inspect.isclass(hint) and issubclass(hint, Enum)
    return origin is Literal or enumerated or hint in _VALUES
