"""The arguments of classes, read from the source of their constructors."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import Parameter
from itertools import chain, repeat
from typing import Any

from pfl.imports import modules
from pfl.imports.modules import Module
from pfl.imports.stubs import Routine, UnreadableError, evaluated, is_stub, routine

# The arguments of a class or a function by name; those without a declared type have no annotation.
Parameters = Mapping[str, Parameter]
# Names in the types that are taken from another package; evaluating others would read much of it.
_PLAIN = {"int", "float", "str", "bool", "Optional", "Union"}


def constant(kind: Any, name: str) -> Any:
    """Return the plain value of an attribute of a class or a stand-in; ``None`` if it has none."""
    for one in getattr(kind, "__mro__", ()):
        if "source" not in vars(one) and name in vars(one):
            return vars(one)[name]
        for statement in vars(one)["source"][1].body if "source" in vars(one) else ():
            value = getattr(statement, "value", None)
            if name in modules.assigned(statement) and isinstance(value, ast.Constant):
                return value.value
    return None


def constructors(kind: type) -> Iterator[tuple[Module, ast.FunctionDef, set[str]]]:
    """Yield the constructors that are run for a stand-in's class, the first one first.

    Each comes with its module, and with the arguments of those before it, which pass on others.
    """
    above = set[str]()
    for one in kind.__mro__:
        if "source" not in vars(one):
            return
        module, node = vars(one)["source"]
        made = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        start = made.get("__post_init__") or made.get("__init__")
        if start is None:
            continue
        yield module, start, above
        if start.args.kwarg is None:
            return
        above = {*above, *(one.arg for one in (*start.args.args, *start.args.kwonlyargs))}


@cache
def parameters(kind: type | Routine) -> Parameters | None:
    """Return the arguments of a stand-in, those that it passes on to its bases too.

    ``None`` if only running the source would tell.
    """
    if isinstance(kind, type):
        return _along(kind.__mro__)
    module, node = kind.source
    # Those of torchvision register a builder, and leave its arguments as they are.
    kept = not node.decorator_list or modules.is_spelt(module.name)
    return _of_function(module, node, ()) if kept else None


def _along(line: tuple[type, ...]) -> Parameters | None:
    """Return the arguments that the first class of a line of bases takes."""
    first, *rest = line
    if first in (object, dict):
        return {}
    if "opaque" in vars(first) or vars(first)["remade"]:
        return None
    module, node = vars(first)["source"]
    after = tuple(rest)
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return _of_function(module, one, after)
    if "__dataclass_fields__" in vars(first) or dict in line:
        inner = _along(after)
        fields = dict(_fields(module, node))
        if dict in line:  # all of its keys may be left out
            fields = {name: one.replace(default=...) for name, one in fields.items()}
        return None if inner is None else {**inner, **fields}
    return _along(after)


def _fields(module: Module, node: ast.ClassDef) -> Iterator[tuple[str, Parameter]]:
    for one in node.body:
        match one:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=hint, value=value):
                written = ast.unparse(hint)
                hidden = value is not None and "init=False" in ast.unparse(value)
                if not hidden and not written.startswith(("ClassVar", "KW_ONLY")):
                    yield name, _parameter(module, name, hint, value)


def _parameter(
    module: Module, name: str, hint: ast.expr | None, default: ast.expr | None
) -> Parameter:
    declared: Any = Parameter.empty
    value: Any = Parameter.empty
    if module.foreign and not _is_plain(hint):
        declared = Any
    elif hint is not None:
        try:
            declared = evaluated(module, hint)
        except UnreadableError:
            declared = Any
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except ValueError:
            value = _Written(ast.unparse(default))
    return Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=declared)


def _is_plain(hint: ast.expr | None) -> bool:
    """Return ``True`` for the annotation of plain values."""
    kinds = (ast.Name, ast.Load, ast.BinOp, ast.BitOr, ast.Subscript, ast.Tuple, ast.Constant)
    inner = [] if hint is None else [*ast.walk(hint)]
    return bool(inner) and all(
        isinstance(one, kinds)
        and (not isinstance(one, ast.Name) or one.id in _PLAIN)
        and (not isinstance(one, ast.Constant) or one.value is None)
        for one in inner
    )


class _Written(str):
    """A default as the source writes it, if it is not a plain value."""

    def __repr__(self) -> str:
        return str(self)


def _of_function(
    module: Module, function: ast.FunctionDef, after: tuple[type, ...]
) -> Parameters | None:
    """Return the arguments of a constructor, and of the one that it passes others on to.

    So of a function, which has no bases.
    """
    given = function.args
    positional = [*given.posonlyargs, *given.args][bool(after) :]
    late = zip(reversed(positional), chain(reversed(given.defaults), repeat(None)), strict=False)
    pairs = [*reversed([*late]), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    own = {one.arg: _parameter(module, one.arg, one.annotation, value) for one, value in pairs}
    inner = (_along(after) or {}) if after else {}
    for name, one in own.items():
        if one.annotation is Parameter.empty and name in inner:
            own[name] = one.replace(annotation=inner[name].annotation)
    passed = _passed_on(module, function, after)
    return (
        None
        if passed is None
        else {**own, **{name: passed[name] for name in passed if name not in own}}
    )


def _passed_on(
    module: Module, function: ast.FunctionDef, after: tuple[type, ...]
) -> Parameters | None:
    """Return the arguments that a constructor takes as ``**options`` for those that it calls."""
    if function.args.kwarg is None:
        return {}
    calls, found = _passing(module, function, function.args.kwarg.arg)
    if calls is None:
        return None
    for call in calls:
        taken = _taken(module, call.func, after)
        if taken is None:
            return None
        given = {*[*taken][: len(call.args)], *(word.arg for word in call.keywords)}
        found |= {name: one for name, one in taken.items() if name not in given}
    return found


def _passing(
    module: Module, function: ast.FunctionDef, options: str
) -> tuple[list[ast.Call] | None, dict[str, Parameter]]:
    """Return the calls to which options are passed on, and those that are taken out by name.

    There are no such calls to tell of where options are used otherwise.
    """
    uses = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == options]
    calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
    looks = _looks(module, calls, options) if module.foreign else []
    calls = [call for call in calls if any(word.value in uses for word in call.keywords)]
    taken = {name: _parameter(module, name, None, ast.Constant(None)) for name in looks if name}
    return (calls if len(calls) + len(looks) >= len(uses) else None), taken


def _taken(module: Module, called: ast.expr, after: tuple[type, ...]) -> Parameters | None:
    """Return the arguments of what a constructor calls, if that is a class."""
    if ast.unparse(called) == "super().__init__":
        return _along(after)
    try:
        made = evaluated(module, called)
    except UnreadableError:
        made = routine(f"{module.name}.{ast.unparse(called)}")
    return parameters(made) if is_stub(made) or isinstance(made, Routine) else None


def _looks(module: Module, calls: list[ast.Call], options: str) -> list[str]:
    """Return the option that each call takes out of all; empty for one that only looks at them."""
    found = []
    for call in calls:
        match call:
            case ast.Call(func=ast.Attribute(value=of), args=[ast.Constant(str(key)), _]):
                found += [key] * (ast.unparse(of) == options)
            case ast.Call(args=[ast.Name(id=name), *_]) if name == options:
                found += [""] * _only_looks(module, call.func)
    return found


def _only_looks(module: Module, called: ast.expr) -> bool:
    """Return ``True`` for a function that takes nothing out of the options that it is given."""
    made = routine(f"{module.name}.{ast.unparse(called)}")
    if made is None or not made.source[1].args.args:
        return False
    name, harmless, uses = made.source[1].args.args[0].arg, list[ast.expr](), list[ast.expr]()
    for one in ast.walk(made.source[1]):
        match one:
            case ast.Name():
                uses += [one] * (one.id == name)
            case ast.Subscript(value=value):
                harmless.append(value)
            case ast.Compare(comparators=several):
                harmless += several
    return all(one in harmless for one in uses)
