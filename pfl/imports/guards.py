"""The checks at the head of a constructor, computed from its source without running it.

A constructor begins by refusing arguments: ``if lr < 0.0: raise ValueError(f"Invalid ...: {lr}")``,
or ``at_least_one(patience=patience)``. Whatever there is a plain expression of arguments whose
values are known can be computed beforehand, with the message that the constructor itself would
give. Anything else is left to the call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any, NamedTuple

from pfl.imports import signatures, stubs
from pfl.imports.stubs import UnreadableError

# What an expression may consist of: computing it calls nothing that a class defines.
_PLAIN = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.Is, ast.IsNot, ast.Constant, ast.Name, ast.Load, ast.Subscript, ast.Tuple, ast.List),
    *(ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.Add, ast.Sub),
)
# Values of arguments that take part.
_VALUES = (bool, int, float, str, type(None))


class Refusal(NamedTuple):
    """What a constructor says of its arguments.

    Attributes:
        what: Its message.
        names: The arguments that this depends on.
    """

    what: str
    names: list[str]


def refusal(made: type, given: Mapping[str, Any]) -> Refusal | None:
    """Return how a stand-in's class would refuse some arguments; ``None`` if that cannot be told.

    Args:
        made: The stand-in.
        given: The arguments that are given, as plain values; all others have their defaults.
    """
    if (taken := signatures.parameters(made)) is None:
        return None
    usual = {name: one.default for name, one in taken.items() if one.default is not one.empty}
    known = {name: value for name, value in {**usual, **given}.items() if is_plain(value)}
    for module, constructor, above in signatures.constructors(made):
        # What a constructor below has under the same name need not be what it passes on.
        values = {name: value for name, value in known.items() if name not in above}
        constants = _constants(made, constructor)
        values |= {name: one for name, one in constants.items() if name not in taken}
        for statement in constructor.body:
            if (found := _refused(module, statement, values)) is not None:
                return found
            for name in _assigned(statement):
                values.pop(name, None)
    return None


def _constants(made: type, constructor: ast.FunctionDef) -> dict[str, Any]:
    """Return the attributes of a class that its constructor reads and that are plain constants."""
    names = {one.attr for one in ast.walk(constructor) if isinstance(one, ast.Attribute)}
    found = {name: signatures.constant(made, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def is_plain(value: Any) -> bool:
    """Return ``True`` for a value of a type that has no other behaviour, or a list of such."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return type(value) in _VALUES


def _assigned(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives other values."""
    for one in ast.walk(statement):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id


def _refused(module: Any, statement: ast.stmt, values: Mapping[str, Any]) -> Refusal | None:
    match statement:
        case ast.If(test=test, body=[ast.Raise(exc=ast.Call(args=[message, *_]))]):
            with suppress(_UnknownError):
                if _computed(test, values):
                    return Refusal(_computed(message, values), _names(test))
        case ast.Expr(value=ast.Call(func=called, args=arguments, keywords=options)):
            check = None
            with suppress(UnreadableError):
                check = stubs.evaluated(module, called)
            if isinstance(check, FunctionType) and check.__module__ == "pfl.core.checks":
                return _failed(check, arguments, options, values)
    return None


def _failed(
    check: FunctionType,
    arguments: list[ast.expr],
    options: list[ast.keyword],
    values: Mapping[str, Any],
) -> Refusal | None:
    """Return how a check of :mod:`pfl.core.checks` refuses the arguments that are known."""
    try:
        words = [_computed(one, values) for one in arguments]
    except _UnknownError:
        return None
    for option in options:
        with suppress(_UnknownError, TypeError):
            try:
                check(*words, **{str(option.arg): _computed(option.value, values)})
            except ValueError as error:
                return Refusal(str(error), _names(option.value))
    return None


class _UnknownError(Exception):
    """A value cannot be computed."""


def _computed(node: ast.expr, values: Mapping[str, Any]) -> Any:
    node = _Own().visit(ast.parse(ast.unparse(node), mode="eval").body)
    parts = [*ast.walk(node)]
    known = all(isinstance(one, _PLAIN) for one in parts) and {*_names(node)} <= values.keys()
    if not known:
        raise _UnknownError
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<source>", "eval")
    try:
        return eval(code, {"__builtins__": {}}, dict(values))
    except Exception as error:
        raise _UnknownError from error


class _Own(ast.NodeTransformer):
    """Reads the fields of a dataclass as its arguments."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        match node.value:
            case ast.Name(id="self"):
                return ast.Name(node.attr, ast.Load())
        return node


def _names(node: ast.expr) -> list[str]:
    return [one.id for one in ast.walk(_Own().visit(node)) if isinstance(one, ast.Name)]
