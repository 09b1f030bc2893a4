"""Outlines of classes, read from their source files without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from pfl.imports import plugins
from pfl.imports.plugins import PACKAGES

# What can be listed, with the base class of each kind.
KINDS = {
    "methods": "lightning_modules.base.ClientModule",
    "nets": "lightning_modules.nets.SplitNet",
    "data": "datamodules.FederatedDataModule",
    "partitions": "datamodules.Partitioner",
}

# How data are shown. pfl imports no method and no data set; it finds them by what this file names.
INSPECT = "datamodules.inspect"

# Packages whose classes a configuration may name.
NAMED = ("lightning_modules", "datamodules", "pfl.engines", "pfl.callbacks", "pfl.federation")

LOOP = "pfl.loop.FederatedLoop"

# The group of plug-ins without a base class in this project.
METRICS = "pfl.metrics"


class BrokenError(ImportError):
    """A module exists, but cannot be imported."""


@dataclass(frozen=True)
class Outline:
    """A class, as its source file defines it.

    Attributes:
        module: The module that defines it.
        node: The parsed definition.
    """

    module: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        """The class's name."""
        return self.node.name

    @property
    def package(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]

    @property
    def shown(self) -> str:
        """The name in a list; for a plug-in, preceded by its package."""
        own = f"{self.module}.".startswith(PACKAGES)
        return self.name if own else f"{self.package}.{self.name}"

    @property
    def sentence(self) -> str:
        """The first line of the docstring, without its markup."""
        first = (ast.get_docstring(self.node) or "").partition("\n")[0]
        return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", first).replace("``", "")


@dataclass(frozen=True)
class _File:
    """The classes, type aliases and imports of a source file, by name."""

    classes: Mapping[str, ast.ClassDef]
    aliases: Mapping[str, ast.expr]
    imports: Mapping[str, str]


class Sources:
    """Source files, each read once.

    Attributes:
        faults: Errors of files that could not be parsed, by file.
    """

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self._files: dict[str, _File] = {}

    def of_kind(self, kind: str) -> list[Outline]:
        """Return the classes of one of :data:`KINDS`, the project's own and plug-ins', by name.

        Abstract and private classes are left out.

        Raises:
            BrokenError: The base class is not found.
            ValueError: There is no such kind.
        """
        if kind not in KINDS:
            raise ValueError(f"there is no list of {kind!r}; choose from {', '.join(KINDS)}")
        base = self.find(KINDS[kind])
        if base is None:
            raise BrokenError(f"{KINDS[kind]} cannot be found")
        package, _, _ = KINDS[kind].partition(".")
        groups = [group for group in plugins.GROUPS if group != METRICS]
        named = {item.name: item for item in (*self._own(package), *self._brought(*groups))}
        found = (item for item in named.values() if item != base and not item.name.startswith("_"))
        usable = (item for item in found if base in self.line(item) and not self.is_abstract(item))
        return sorted(usable, key=lambda item: item.name.lower())

    def own(self) -> Iterator[Outline]:
        """Yield all classes of the packages whose classes a configuration may name."""
        for package in NAMED:
            yield from self._own(package)

    def metrics(self) -> list[Outline]:
        """Return the metrics of plug-ins; all others are those of torchmetrics."""
        return sorted(self._brought(METRICS), key=lambda item: item.name.lower())

    def find(self, path: str) -> Outline | None:
        """Return the class of a dotted path, following imports; ``None`` if it is not found."""
        module, name = self._home(path)
        node = self._file(module).classes.get(name)
        return None if node is None else Outline(module, node)

    def alias(self, module: str, name: str) -> ast.expr | None:
        """Return the type that a name stands for in a module."""
        home, own = self._home(f"{module}.{name}")
        return self._file(home).aliases.get(own)

    def line(self, item: Outline) -> list[Outline]:
        """Return a class and all its bases whose source files are found, nearest first."""
        line = [item]
        for base in item.node.bases:
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            if (found := self.find(f"{item.module}.{name}")) is not None:
                line += self.line(found)
        # A base that several classes have comes after all of them, as in Python.
        return list(dict.fromkeys(reversed(line)))[::-1]

    def _own(self, package: str) -> Iterator[Outline]:
        for folder in folders(package):
            for file in sorted(Path(folder).rglob("*.py")):
                parts = file.relative_to(folder).with_suffix("").parts
                module = ".".join((package, *(part for part in parts if part != "__init__")))
                for node in self._file(module).classes.values():
                    yield Outline(module, node)

    def _brought(self, *groups: str) -> Iterator[Outline]:
        for point in plugins.installed(*groups):
            if (found := self.find(f"{point.module}.{point.attr}")) is not None:
                yield found
            elif _file_of(point.module) is None:
                self.faults[f"the plug-in {point.value}"] = f"there is no module {point.module}"

    def arguments(self, item: Outline) -> list[str] | None:
        """Return the names of a class's arguments, with those that it passes on to its bases.

        ``None`` if they are passed on to what is not read here.
        """
        names: list[str] = []
        for one in self.line(item):
            fields = _fields(one.node)
            if (start := _start(one.node)) is not None:
                takes = start.args
                names += [a.arg for a in (*takes.posonlyargs, *takes.args, *takes.kwonlyargs)[1:]]
                if takes.kwarg is None:
                    return list(dict.fromkeys(names))
            elif fields is not None:
                names += fields
        return names if names and _fields(item.node) is not None else None

    def is_abstract(self, item: Outline) -> bool:
        """Return ``True`` if a class leaves an abstract method of its bases undefined."""
        nearest: dict[str, bool] = {}
        for one in reversed(self.line(item)):
            nearest.update(_members(one.node))
        return any(nearest.values())

    def _home(self, path: str) -> tuple[str, str]:
        """Return module and name of the object at a dotted path, following imports."""
        module, _, name = path.rpartition(".")
        seen = set[str]()
        while path not in seen:
            seen.add(path)
            path = self._file(module).imports.get(name, path)
            module, _, name = path.rpartition(".")
        return module, name

    def _file(self, module: str) -> _File:
        if module not in self._files:
            self._files[module] = self._parsed(module)
        return self._files[module]

    def _parsed(self, module: str) -> _File:
        file = _file_of(module)
        try:
            tree = ast.parse("" if file is None else file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError) as error:
            self.faults[str(file)] = f"{type(error).__name__}: {error}"
            tree = ast.parse("")
        package = (
            module if file is not None and file.stem == "__init__" else module.rpartition(".")[0]
        )
        imports = {
            alias.asname or alias.name: f"{_absolute(node, package)}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        aliases = {
            node.target.id: node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
        }
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        return _File(classes, aliases, imports)


def folders(package: str) -> Sequence[str]:
    """Return the folders of one of this project's packages, which are cheap to import.

    Raises:
        BrokenError: Another module or folder of the same name hides the package.
    """
    module = import_module(package)
    home = Path(__file__).parents[2]
    found: Sequence[str] = getattr(module, "__path__", ())
    if not any(Path(folder).is_relative_to(home) for folder in found):
        hiding = getattr(module, "__file__", None) or next(iter(found), "?")
        raise BrokenError(
            f"{hiding} hides pfl's own package {package}: rename it, or run pfl from another folder"
        )
    return found


def _file_of(module: str) -> Path | None:
    """Return a module's source file; packages of others are not imported to find it."""
    top, *parts = module.split(".")
    if f"{top}." in PACKAGES:
        homes: Sequence[str] = folders(top)
    else:
        try:
            spec = find_spec(top)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return None
        if not parts and spec.has_location and spec.origin is not None:
            return Path(spec.origin) if spec.origin.endswith(".py") else None
        homes = spec.submodule_search_locations or ()
    for home in homes:
        place = Path(home, *parts)
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file
    return None


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of the module in an import statement of ``package``."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _start(node: ast.ClassDef) -> ast.FunctionDef | None:
    """Return the definition of a class's ``__init__``, if it has one of its own."""
    found = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    return next(found, None)


def _fields(node: ast.ClassDef) -> list[str] | None:
    """Return the fields of a dataclass; ``None`` for any other class."""
    if not any(ast.unparse(mark).startswith("dataclass") for mark in node.decorator_list):
        return None
    declared = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    return [
        ast.unparse(n.target)
        for n in declared
        if not ast.unparse(n.annotation).startswith("ClassVar")
    ]


def _members(node: ast.ClassDef) -> dict[str, bool]:
    """Return the names that a class defines; the value is ``True`` for abstract methods."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            found[item.name] = "abstractmethod" in map(ast.unparse, item.decorator_list)
        elif isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            found.update(dict.fromkeys(map(ast.unparse, targets), False))
    return found
