"""The types that classes and functions declare for their arguments."""

from __future__ import annotations

import collections
import inspect
import os
from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
)
from uuid import UUID

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

BesideT = TypeVar("BesideT")
# Types of plain values: an argument that declares only these takes no objects.
_VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range),
    *(Path, PurePath, os.PathLike, timedelta, UUID),
)
MAPPINGS = (dict, Mapping, abc.MutableMapping, collections.OrderedDict)
CALLABLES = (Callable, type)
LISTS = (
    *(list, tuple, set, frozenset, collections.deque, Sequence, abc.MutableSequence),
    *(abc.Set, abc.MutableSet, Collection, abc.Container, abc.Iterable, abc.Reversible),
)
# Classes of what functions compute, and nobody builds by name.
_COMPUTED = ("Tensor", "ndarray", "Image")
# Types whose parameters are the types of their values.
_CONTAINERS = (*LISTS, *MAPPINGS)
_PLAIN = (*_VALUES, object, *_CONTAINERS)


@cache
def declared(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the declared types of the arguments of a class or a function.

    They include arguments that it passes on to its bases or to a function. An argument without a
    type has that of the base's argument of the same name.
    """
    names, parser = _arguments(target)
    types = types_of(parser)
    return {**{name: types.get(name) for name in names}, **inherited(target)}


@cache
def inherited(target: Any) -> Mapping[str, Any]:
    """Return the types of the arguments that a class's constructor leaves to its bases'."""
    names = [*_without_type(target)]
    bases = [declared(base) for base in inspect.getmro(target)[1:-1]] if names else []
    found = {name: [base[name] for base in bases if base.get(name) is not None] for name in names}
    return {name: types[0] for name, types in found.items() if types}


def untyped(target: Any) -> set[str]:
    """Return the arguments that need a value and have no type, of a class or of its bases."""
    needed = {name for name, one in _without_type(target).items() if one.default is one.empty}
    return needed - inherited(target).keys() if needed else needed


def _without_type(target: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments of a class's own constructor that have no annotation."""
    if not inspect.isclass(target) or "__init__" not in vars(target):
        return {}
    own = [*inspect.signature(vars(target)["__init__"]).parameters.values()][1:]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {one.name: one for one in own if one.kind not in several and one.annotation is one.empty}


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


def takes_function(hint: Any) -> bool:
    """Return ``True`` if a function is itself the value, such as an activation.

    Where a type says what is made, as ``Callable[..., Optimizer]`` does, it is called.
    """
    called = [part for part in parts(hint) if takes(part, (Callable,))]
    made = {one.__name__ for part in called for one in classes(part)}
    return bool(called) and made <= {*_COMPUTED}


def takes_class(hint: Any) -> bool:
    """Return ``True`` if a class is itself the value, as of ``type[Module]``."""
    taken = [part for part in parts(hint) if not is_plain(part)]
    return bool(taken) and all(type in (part, get_origin(part)) for part in taken)


def values_of(hint: Any, containers: Collection[Any] = MAPPINGS) -> Any:
    """Return the type of the values of a declared mapping, or of another container."""
    if get_origin(hint) in containers:
        return get_args(hint)[1 if get_origin(hint) in MAPPINGS else 0]
    inner = [values_of(part, containers) for part in get_args(hint) if takes(part, containers)]
    return union(inner) if inner else None


def bare(hint: Any) -> Any:
    """Return a type without what stands beside it, such as a range."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return bare(inner[0])
    if isinstance(hint, NewType):
        return bare(hint.__supertype__)
    if origin in (Union, UnionType):
        return union([*map(bare, inner)])
    return origin[tuple(map(bare, inner))] if origin in _CONTAINERS else hint


def beside(hint: Any, kind: type[BesideT]) -> Iterator[BesideT]:
    """Yield what stands beside a type, or beside a part of it, and is of a kind."""
    if get_origin(hint) is Annotated:
        yield from (one for one in hint.__metadata__ if isinstance(one, kind))
    for part in get_args(hint):
        yield from beside(part, kind)


def parts(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union; another type is its only one."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def union(alternatives: Sequence[Any]) -> Any:
    """Return the union of some types, in their order, in which a parser tries them.

    Python keeps the unions of unions that it has made, and takes those that differ only in their
    order for the same.
    """
    flat = tuple(part for one in alternatives for part in parts(one))
    return Union[flat]  # noqa: UP007 (of values)


def words(hint: Any) -> tuple[Any, ...]:
    """Return the words that a type allows, if it lists them."""
    return get_args(hint) if get_origin(hint) is Literal else ()


def all_words(hint: Any) -> list[Any]:
    """Return the words that a type or one of its alternatives lists."""
    return [word for part in parts(hint) for word in words(part)]


def is_known(hint: Any) -> bool:
    """Return ``True`` if a type says which values an argument takes."""
    # jsonargparse marks arguments without a type by types of its own.
    return not any(
        part in (None, Any, object) or type(part).__module__.startswith("jsonargparse")
        for part in parts(hint)
    )


def is_record(kind: Any) -> bool:
    """Return ``True`` for a class whose fields are given without its name."""
    named = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    return is_dataclass(kind) or named or (isinstance(kind, type) and issubclass(kind, dict))


def plain_part(hint: Any) -> Any:
    """Return the alternatives of a type that take no objects; ``None`` if there are none."""
    plain = [part for part in parts(hint) if is_plain(part) and part is not NoneType]
    return union(plain) if plain else None


def objects(hint: Any) -> Any:
    """Return the alternatives of a type that take objects; the type itself if none does."""
    if hint is None:
        return None
    left = [part for part in parts(hint) if not is_plain(part)]
    return union(left) if left else hint


def alone(hint: Any) -> Any:
    """Return the alternatives of a type that are no containers; ``None`` if there are none."""
    left = [
        one for one in parts(hint) if not takes(one, (*LISTS, *MAPPINGS)) and one is not NoneType
    ]
    return union(left) if left else None


def said(hint: Any) -> str:
    """Return a type in words."""
    given = [part for part in parts(hint) if part is not NoneType]
    return " or ".join(dict.fromkeys(map(_said, given)))


def _said(part: Any) -> str:
    if words(part):
        return f"one of {', '.join(map(repr, words(part)))}"
    if takes(part, LISTS):
        inner = words(values_of(part, LISTS))
        return f"list of {', '.join(map(repr, inner))}" if inner else "list"
    if takes(part, MAPPINGS):
        return "dict"
    made = [*classes(part)]
    if made and all(map(is_record, made)):
        return "keys and values"
    names = [one.__name__ for one in made]
    if names:
        return f"{' or '.join(names)} (a class name, or class_path and init_args)"
    return getattr(part, "__name__", str(part))


def spelt(hint: Any) -> str:
    """Return a type as a source writes it."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType, Literal):
        return " | ".join(map(spelt, inner))
    if get_origin(hint) is not None:
        return f"{get_origin(hint).__name__}[{', '.join(map(spelt, inner))}]"
    return "None" if hint is NoneType else getattr(hint, "__name__", repr(hint))


def is_plain(hint: Any) -> bool:
    """Return ``True`` if a declared type has only text, numbers, words or containers of them."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, *_CONTAINERS):
        return all(part is ... or is_plain(part) for part in get_args(hint))
    enumerated = inspect.isclass(hint) and issubclass(hint, Enum)
    return origin is Literal or enumerated or hint in _VALUES
