"""Stand-ins for classes, built from their source: bases, arguments and types, without an import.

A stand-in is a class of the same name, whose bases are stand-ins too. Nothing of the source is
executed. Reading the few files that a configuration names takes milliseconds, importing torch
seconds.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from inspect import Parameter
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pfl.imports.plugins import PACKAGES

# Packages whose source is read: this project's, and torch.
_READ = (*(name.rstrip(".") for name in PACKAGES), "torch")
# Modules whose names are types, and those that compute types and import nothing heavy.
_IMPORTED = (
    "typing",
    "collections.abc",
    "pathlib",
    "types",
    "pfl.engines.named",
    "pfl.core.ranges",
)
# Bases that say how a class is built, not what it is.
_FORMAL = {"ABC", "Protocol", "Generic", "NamedTuple", "TypedDict", "object"}
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)

# The arguments of a class or a function by name; those without a declared type have no annotation.
Parameters = Mapping[str, Parameter]


class UnreadableError(ValueError):
    """A source says something that only running it would tell."""


class _Module:
    """A module's source: where its names come from.

    Args:
        name: Its dotted name.
        file: Its file.
    """

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self._package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for statement in _flat(ast.parse(file.read_text(encoding="utf-8")).body):
            self._enter(statement)

    def _enter(self, statement: ast.stmt) -> None:
        match statement:
            case ast.ClassDef(name=name):
                self.classes[name] = statement
            case ast.FunctionDef(name=name):
                self.functions[name] = statement
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.aliases[name] = value
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.aliases[name] = value
            case ast.Import(names=names):
                for one in names:
                    home = one.name if one.asname else one.name.partition(".")[0]
                    self.imports[one.asname or home] = home
            case ast.ImportFrom(names=names):
                home = self._home(statement)
                self.stars += [home for one in names if one.name == "*" and home != self.name]
                self.imports |= {one.asname or one.name: f"{home}.{one.name}" for one in names}

    def _home(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return str(statement.module)
        parts = self._package.split(".")
        above = parts[: len(parts) - statement.level + 1]
        return ".".join([*above, *([statement.module] if statement.module else [])])

    def may_have(self, name: str) -> bool:
        """Return ``False`` if the module defines and imports no such name."""
        known = {*self.classes, *self.functions, *self.aliases, *self.imports}
        stars = self._stars()
        return (
            bool({name, "__getattr__"} & known)
            or None in stars
            or any(name in star.named() for star in stars if star is not None)
        )

    def _stars(self) -> list[_Module | None]:
        """Return the modules from which everything is imported, at any depth."""
        found: dict[str, _Module | None] = {}
        pending = [*self.stars]
        while pending:
            home = pending.pop()
            if home not in found:
                found[home] = module = _module(home)
                pending += [] if module is None else module.stars
        return [*found.values()]

    def named(self) -> list[str]:
        """Return the names that the module itself defines or imports, and may be classes."""
        return [*self.classes, *self.imports]

    def names(self) -> list[str]:
        """Return the names that may be those of classes."""
        stars = [star for star in self._stars() if star is not None]
        return [name for module in (self, *stars) for name in module.named()]

    def found(self, name: str) -> Any:
        """Return the type that a name stands for.

        Raises:
            UnreadableError: It cannot be told.
        """
        if name in self.classes:
            return _built(self, self.classes[name])
        if name in self.aliases:
            return self.evaluated(self.aliases[name])
        if self.imports.get(name) == f"{self.name}.{name}":
            raise UnreadableError(name)  # a package imports its own module
        if name in self.imports:
            return resolved(self.imports[name])
        for star in self._stars():
            if star is not None and name in star.named():
                return star.found(name)
        if isinstance(kind := getattr(builtins, name, None), type):
            return kind
        raise UnreadableError(name)

    def evaluated(self, node: ast.expr) -> Any:
        """Return the type that an annotation describes.

        Raises:
            UnreadableError: It cannot be told.
        """
        match node:
            case ast.Constant(value=str(text)):
                return self.evaluated(ast.parse(text, mode="eval").body)
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.found(name)
            case ast.Attribute():
                first, *rest = ast.unparse(node).split(".")
                return resolved(".".join([self.imports.get(first, first), *rest]))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return Union[self.evaluated(left), self.evaluated(right)]  # noqa: UP007 (of values)
            case ast.List(elts=items):
                return [self.evaluated(item) for item in items]
            case ast.Subscript(value=outer, slice=inner):
                return self._subscripted(self.evaluated(outer), inner)
        raise UnreadableError(ast.unparse(node))

    def _range(self, node: ast.expr) -> Any:
        """Return the range that stands beside a type."""
        match node:
            case ast.Call(func=called, args=[ast.Constant(value=str(interval))]):
                kind = self.evaluated(called)
                if kind is resolved("pfl.core.ranges.Range"):
                    return kind(interval)
        raise UnreadableError(ast.unparse(node))

    def _subscripted(self, outer: Any, inner: ast.expr) -> Any:
        items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        try:
            if outer is Annotated:
                return Annotated[self.evaluated(items[0]), self._range(items[1])]
            if outer is Literal:
                return Literal[tuple(ast.literal_eval(item) for item in items)]
            return outer[tuple(self.evaluated(item) for item in items)]
        except (TypeError, ValueError) as error:
            raise UnreadableError(str(error)) from error


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those in branches of ``if`` and ``try`` too."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _flat([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _flat(statement.body)
        else:
            yield statement


@cache
def _folder(package: str) -> Path | None:
    """Return the folder of an installed package."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _own_folder(top: str) -> Path | None:
    """Return the place of a package or module, without suffix, if it is in the working folder."""
    here = Path.cwd()
    spec = PathFinder.find_spec(top)
    # One of this name that is installed comes first.
    elsewhere = (
        spec is not None and spec.origin is not None and here not in Path(spec.origin).parents
    )
    return None if elsewhere else here / top


def _module(name: str) -> _Module | None:
    """Return the source of a module of a package that is read, or of the working folder."""
    top, *rest = name.split(".")
    if not all(part.isidentifier() for part in (top, *rest)):
        return None
    folder = _folder(top) if top in _READ else _own_folder(top)
    if folder is None:
        return None
    place = folder.joinpath(*rest)
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if file.is_file():
            return _parsed(name, file, file.stat().st_mtime_ns)
    return None


@cache
def _parsed(name: str, file: Path, changed: int) -> _Module | None:
    try:
        return _Module(name, file)
    except (SyntaxError, ValueError):
        return None


@cache
def named() -> Mapping[str, list[str]]:
    """Return the dotted paths of this project's classes, by name."""
    found: dict[str, list[str]] = {}
    for package, folder in ((one, _folder(one)) for one in _READ[:-1]):
        if folder is None:
            continue
        for file in sorted(folder.rglob("*.py")):
            home = ".".join([package, *file.relative_to(folder).with_suffix("").parts])
            for name in _CLASS.findall(file.read_text(encoding="utf-8")):
                found.setdefault(name, []).append(f"{home.removesuffix('.__init__')}.{name}")
    return found


@cache
def in_folder(folder: str) -> list[str]:
    """Return the names of the public classes in a folder of torch, such as ``optim``."""
    home = _folder("torch")
    files = (home / folder).rglob("*.py") if home is not None else ()
    names = (name for file in files for name in _CLASS.findall(file.read_text(encoding="utf-8")))
    return sorted({name for name in names if name[0] != "_"})


def resolved(path: str) -> Any:
    """Return what a dotted path stands for in annotations; a class of other packages is opaque.

    Raises:
        UnreadableError: It cannot be told.
    """
    home, _, name = path.rpartition(".")
    if home in _IMPORTED:
        return getattr(import_module(home), name)
    module = _module(home)
    if module is not None:
        return module.found(name)
    if path.partition(".")[0] in _READ:
        raise UnreadableError(path)
    return _opaque(path)


@cache
def _opaque(path: str) -> type:
    home, _, name = path.rpartition(".")
    return type(name, (), {"__module__": home, "opaque": True})


def lacks(path: str) -> bool:
    """Return ``True`` if the source of a path's module shows that it has no such name."""
    home, _, name = path.rpartition(".")
    module = _module(home)
    return module is not None and not module.may_have(name)


def names_of(path: str) -> list[str]:
    """Return the paths of all that may be a class in a path's module."""
    module = _module(path.rpartition(".")[0])
    return [] if module is None else [f"{module.name}.{name}" for name in module.names()]


def stub(path: str) -> type | None:
    """Return the stand-in for the class at a dotted path.

    ``None`` if its source is not read, or does not say.
    """
    home, _, name = path.rpartition(".")
    try:
        module = _module(home)
        made = None if module is None else module.found(name)
    except UnreadableError:
        return None
    return made if is_stub(made) else None


def is_opaque(kind: type) -> bool:
    """Return ``True`` if some base of a stand-in is of a package that is not read."""
    return any("opaque" in vars(base) for base in kind.__mro__)


def is_stub(kind: Any) -> bool:
    """Return ``True`` for a stand-in."""
    return isinstance(kind, type) and "source" in vars(kind)


def is_protocol(kind: type) -> bool:
    """Return ``True`` for a protocol, or the stand-in for one."""
    return bool(vars(kind).get("_is_protocol", False))


@cache
def _built(module: _Module, node: ast.ClassDef) -> type:
    words = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    bases = dict.fromkeys([*_bases(module, node), *([dict] if "TypedDict" in words else [])])
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    content: dict[str, Any] = {
        "__module__": module.name,
        "__doc__": ast.get_docstring(node),
        "_is_protocol": "Protocol" in words,
        "source": (module, node),
    }
    if any("dataclass" in mark for mark in marks):
        content["__dataclass_fields__"] = {}
    if "NamedTuple" in words or any("dataclass" not in mark for mark in marks):
        content["opaque"] = True
    try:
        made = type(node.name, tuple(bases), content)
    except TypeError:  # stand-ins have fewer bases in common
        made = type(node.name, tuple(bases)[:1], content)
    inherited = {name for base in bases for name in getattr(base, "__abstractmethods__", ())}
    made.__abstractmethods__ = frozenset(_abstract(node, inherited))  # type: ignore[attr-defined]
    return made


def _abstract(node: ast.ClassDef, inherited: set[str]) -> set[str]:
    """Return the methods of a class that are abstract, given those of its bases."""
    own = {one.name: one.decorator_list for one in node.body if isinstance(one, ast.FunctionDef)}
    given = {*own, *(name for one in node.body for name in _assigned(one))}
    marked = {name: map(ast.unparse, marks) for name, marks in own.items()}
    abstract = {n for n, marks in marked.items() if any("abstractmethod" in one for one in marks)}
    return (inherited - given) | abstract


def _assigned(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
        case ast.Assign(targets=targets):
            return [one.id for one in targets if isinstance(one, ast.Name)]
    return []


def _bases(module: _Module, node: ast.ClassDef) -> Iterator[type]:
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if ast.unparse(plain).rpartition(".")[2] in _FORMAL:
            continue
        try:
            made = module.evaluated(plain)
        except UnreadableError:
            made = None
        yield made if is_stub(made) else resolved(f"elsewhere.{ast.unparse(plain).split('.')[-1]}")


@cache
def parameters(kind: type) -> Parameters | None:
    """Return the arguments of a stand-in, those that it passes on to its bases too.

    ``None`` if only running the source would tell.
    """
    return _along(kind.__mro__)


def _along(line: tuple[type, ...]) -> Parameters | None:
    """Return the arguments that the first class of a line of bases takes."""
    first, *rest = line
    if first in (object, dict):
        return {}
    if "opaque" in vars(first):
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


def _fields(module: _Module, node: ast.ClassDef) -> Iterator[tuple[str, Parameter]]:
    for one in node.body:
        match one:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=hint, value=value):
                written = ast.unparse(hint)
                hidden = value is not None and "init=False" in ast.unparse(value)
                if not hidden and not written.startswith(("ClassVar", "KW_ONLY")):
                    yield name, _parameter(module, name, hint, value)


def _parameter(
    module: _Module, name: str, hint: ast.expr | None, default: ast.expr | None
) -> Parameter:
    declared: Any = Parameter.empty
    value: Any = Parameter.empty
    if hint is not None:
        try:
            declared = module.evaluated(hint)
        except UnreadableError:
            declared = Any
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except ValueError:
            value = _Written(ast.unparse(default))
    return Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=declared)


class _Written(str):
    """A default as the source writes it, if it is not a plain value."""

    def __repr__(self) -> str:
        return str(self)


def _of_function(
    module: _Module, function: ast.FunctionDef, after: tuple[type, ...]
) -> Parameters | None:
    """Return the arguments of a constructor, and of the one that it passes others on to."""
    given = function.args
    positional = [*given.posonlyargs, *given.args][1:]
    late = zip(reversed(positional), chain(reversed(given.defaults), repeat(None)), strict=False)
    pairs = [*reversed([*late]), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    own = {one.arg: _parameter(module, one.arg, one.annotation, value) for one, value in pairs}
    inner = _along(after) or {}
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
    module: _Module, function: ast.FunctionDef, after: tuple[type, ...]
) -> Parameters | None:
    """Return the arguments that a constructor takes as ``**options`` for those that it calls."""
    if function.args.kwarg is None:
        return {}
    options, found = function.args.kwarg.arg, dict[str, Parameter]()
    uses = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == options]
    calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
    calls = [call for call in calls if any(word.value in uses for word in call.keywords)]
    if len(calls) < len(uses):
        return None
    for call in calls:
        taken = _taken(module, call.func, after)
        if taken is None:
            return None
        given = {*[*taken][: len(call.args)], *(word.arg for word in call.keywords)}
        found |= {name: one for name, one in taken.items() if name not in given}
    return found


def _taken(module: _Module, called: ast.expr, after: tuple[type, ...]) -> Parameters | None:
    """Return the arguments of what a constructor calls, if that is a class."""
    if ast.unparse(called) == "super().__init__":
        return _along(after)
    try:
        made = module.evaluated(called)
    except UnreadableError:
        return None
    return parameters(made) if is_stub(made) else None
