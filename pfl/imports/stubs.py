"""Stand-ins for classes, built from their source: bases and types, without an import.

A stand-in is a class of the same name, whose bases are stand-ins too. Nothing of the source is
executed. Reading the few files that a configuration names takes milliseconds, importing torch
seconds.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from abc import ABC
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal

from pfl.imports import hints, modules
from pfl.imports.modules import Module

# Modules whose names are types, and those that compute types and import nothing heavy.
_IMPORTED = (
    *("typing", "types", "collections", "collections.abc"),
    *("datetime", "os", "pathlib", "uuid"),
    "pfl.engines.named",
    "pfl.core.checks",
    "pfl.core.execution",
    "pfl.core.places",
    "pfl.core.ranges",
    "pfl.core.words",
)
# Types of what is given by its fields.
_OF_FIELDS: dict[str, type] = {"TypedDict": dict, "NamedTuple": tuple}
# Bases that say how a class is built, not what it is.
_FORMAL = {"ABC", "Protocol", "Generic", "NamedTuple", "TypedDict", "object"}


class UnreadableError(ValueError):
    """A source says something that only running it would tell."""


def _found(module: Module, name: str) -> Any:
    """Return the type that a name stands for.

    Raises:
        UnreadableError: It cannot be told.
    """
    if name in module.classes:
        return _built(module, module.classes[name])
    if name in module.aliases:
        return evaluated(module, module.aliases[name])
    if module.imports.get(name) == f"{module.name}.{name}":
        raise UnreadableError(name)  # a package imports its own module
    if name in module.imports:
        return resolved(module.imports[name], module)
    for star in module.every_star():
        if star is not None and name in star.named():
            return _found(star, name)
    if isinstance(kind := getattr(builtins, name, None), type):
        return kind
    raise UnreadableError(name)


def evaluated(module: Module, node: ast.expr) -> Any:
    """Return the type that an annotation describes.

    Raises:
        UnreadableError: It cannot be told.
    """
    match node:
        case ast.Constant(value=str(text)):
            return evaluated(module, ast.parse(text, mode="eval").body)
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _found(module, name)
        case ast.Attribute():
            first, *rest = ast.unparse(node).split(".")
            return resolved(".".join([module.imports.get(first, first), *rest]), module)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return hints.union([evaluated(module, left), evaluated(module, right)])
        case ast.List(elts=items):
            return [evaluated(module, item) for item in items]
        case ast.Subscript(value=outer, slice=inner):
            return _subscripted(module, evaluated(module, outer), inner)
    raise UnreadableError(ast.unparse(node))


def _beside(module: Module, node: ast.expr) -> Any:
    """Return what stands beside a type, such as a range."""
    match node:
        case ast.Name(id=name) if name in module.aliases:
            return _beside(module, module.aliases[name])
        case ast.Name(id=name) if name in module.imports:
            home, _, last = module.imports[name].rpartition(".")
            if (other := modules.module(home)) is not None:
                return _beside(other, ast.Name(last))
        case ast.Call(func=called, args=arguments, keywords=named) if len(arguments) < 2:
            kind = evaluated(module, called)
            if isinstance(kind, type) and kind.__module__ in _IMPORTED:
                options = {str(one.arg): ast.literal_eval(one.value) for one in named}
                return kind(*map(ast.literal_eval, arguments), **options)
    raise UnreadableError(ast.unparse(node))


def _subscripted(module: Module, outer: Any, inner: ast.expr) -> Any:
    items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    try:
        if outer is Annotated:
            beside = (_beside(module, item) for item in items[1:])
            return Annotated[(evaluated(module, items[0]), *beside)]
        if outer is Literal:
            return Literal[tuple(ast.literal_eval(item) for item in items)]
        return outer[tuple(evaluated(module, item) for item in items)]
    except (TypeError, ValueError) as error:
        raise UnreadableError(str(error)) from error


def resolved(path: str, near: Module | None = None) -> Any:
    """Return what a dotted path stands for in annotations; a class of other packages is opaque.

    Args:
        path: The path.
        near: The module that names it, whose own package is read too.

    Raises:
        UnreadableError: It cannot be told.
    """
    home, _, name = path.rpartition(".")
    if home in _IMPORTED:
        return getattr(import_module(home), name)
    top = path.partition(".")[0]
    module = modules.module(home, listed=near is not None and near.name.partition(".")[0] == top)
    if module is not None:
        return _found(module, name)
    if modules.is_read(path):
        raise UnreadableError(path)
    return _opaque(path)


@cache
def _opaque(path: str) -> type:
    home, _, name = path.rpartition(".")
    return type(name, (), {"__module__": home, "opaque": True})


def stub(path: str) -> type | None:
    """Return the stand-in for the class at a dotted path.

    ``None`` if there is no source, or it does not say.
    """
    home, _, name = path.rpartition(".")
    try:
        module = modules.module(home, listed=True)
        made = None if module is None else _found(module, name)
    except UnreadableError:
        return None
    return made if is_stub(made) else None


def public_path(kind: type) -> str:
    """Return the shortest path at which the class of a stand-in can be imported."""
    parts = kind.__module__.split(".")
    # Nothing that a configuration names is in torch itself, whose source is long.
    for count in range(1 + (parts[0] == "torch"), len(parts)):
        module = modules.module(".".join(parts[:count]))
        with suppress(UnreadableError):
            if module is not None and _found(module, kind.__name__) is kind:
                return f"{module.name}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__name__}"


def is_opaque(kind: type) -> bool:
    """Return ``True`` if some base of a stand-in is of a package that is not read.

    Classes of the standard library derive from no other package's.
    """
    homes = (base.__module__ for base in kind.__mro__ if "opaque" in vars(base))
    return any(home.partition(".")[0] not in sys.stdlib_module_names for home in homes)


def is_stub(kind: Any) -> bool:
    """Return ``True`` for a stand-in."""
    return isinstance(kind, type) and "source" in vars(kind)


def is_foreign(kind: type) -> bool:
    """Return ``True`` for the stand-in of a class of another installed package."""
    return is_stub(kind) and bool(vars(kind)["source"][0].foreign)


class Routine:
    """A stand-in for a function.

    Args:
        module: Its module.
        node: Its source.
    """

    def __init__(self, module: Module, node: ast.FunctionDef) -> None:
        self.__name__ = self.__qualname__ = node.name
        self.__module__ = module.name
        self.source = (module, node)


def routine(path: str) -> Routine | None:
    """Return the stand-in for the function at a dotted path; ``None`` if there is no source."""
    home, _, name = path.rpartition(".")
    module = modules.module(home, listed=True)
    for one in (module, *module.every_star()) if module is not None else ():
        if one is not None and name in one.functions:
            return Routine(one, one.functions[name])
        elsewhere = one.imports.get(name, path) if one is not None else path
        if elsewhere != path and (found := routine(elsewhere)) is not None:
            return found
    return None


def is_base(kind: type) -> bool:
    """Return ``True`` for a class that others derive from, or the stand-in for one.

    It lacks methods, or says that it is such a class: ``ABC`` or ``Protocol`` is one of its bases.
    """
    declared = vars(kind).get("_is_base", ABC in kind.__bases__ or is_protocol(kind))
    return inspect.isabstract(kind) or bool(declared)


def is_protocol(kind: type) -> bool:
    """Return ``True`` for a protocol, or the stand-in for one."""
    return bool(vars(kind).get("_is_protocol", False))


@cache
def _built(module: Module, node: ast.ClassDef) -> type:
    words = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    plain = map(_OF_FIELDS.__getitem__, words & _OF_FIELDS.keys())
    bases = dict.fromkeys([*_bases(module, node), *plain])
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    content: dict[str, Any] = {
        "__module__": module.name,
        "__doc__": ast.get_docstring(node),
        "_is_base": bool({"ABC", "Protocol"} & words),
        "_is_protocol": "Protocol" in words,
        "source": (module, node),
        "remade": _is_remade(module, node),
    }
    if any("dataclass" in mark for mark in marks):
        content["__dataclass_fields__"] = {}
    if "NamedTuple" in words:
        content["_fields"] = ()
    if "NamedTuple" in words or any("dataclass" not in mark for mark in marks):
        content["opaque"] = True
    try:
        made = type(node.name, tuple(bases), content)
    except TypeError:  # stand-ins have fewer bases in common
        made = type(node.name, tuple(bases)[:1], content)
    inherited = {name for base in bases for name in getattr(base, "__abstractmethods__", ())}
    # Without ABC among its bases, a class with abstract methods can be made.
    if {"ABC", "Protocol"} & words or any(hasattr(base, "__abstractmethods__") for base in bases):
        made.__abstractmethods__ = frozenset(_abstract(node, inherited))  # type: ignore[attr-defined]
    return made


def _is_remade(module: Module, node: ast.ClassDef) -> bool:
    """Return ``True`` if a foreign class may take other arguments than its constructor spells."""
    functions = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    start = functions.get("__init__")
    made_otherwise = node.keywords or "__new__" in functions or (start and start.decorator_list)
    return module.foreign and bool(made_otherwise)


def _abstract(node: ast.ClassDef, inherited: set[str]) -> set[str]:
    """Return the methods of a class that are abstract, given those of its bases."""
    own = {one.name: one.decorator_list for one in node.body if isinstance(one, ast.FunctionDef)}
    given = {*own, *(name for one in node.body for name in modules.assigned(one))}
    marked = {name: map(ast.unparse, marks) for name, marks in own.items()}
    abstract = {n for n, marks in marked.items() if any("abstractmethod" in one for one in marks)}
    return (inherited - given) | abstract


def _bases(module: Module, node: ast.ClassDef) -> Iterator[type]:
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if ast.unparse(plain).rpartition(".")[2] in _FORMAL:
            continue
        try:
            made = evaluated(module, plain)
        except UnreadableError:
            made = None
        known = isinstance(made, type) and {"source", "opaque"} & vars(made).keys()
        yield made if known else resolved(f"elsewhere.{ast.unparse(plain).split('.')[-1]}")
