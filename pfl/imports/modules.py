"""Modules as their source has them: which names they define and import, without an import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from pfl.imports.plugins import PACKAGES

# Packages whose source is read: this project's, and torch.
_READ = (*(name.rstrip(".") for name in PACKAGES), "torch")
# Packages whose modules have no names but those that their sources spell.
_SPELT = ("torchmetrics", "torchvision")
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
# Words of a source that may give a module names which it does not spell.
_HIDDEN = re.compile(
    r"(?<!\.)\b(globals|vars|setattr|exec|eval)\s*\(|\b(sys\.modules|__dict__|__getattr__)\b"
)


class Module:
    """A module's source: where its names come from.

    Args:
        name: Its dotted name.
        file: Its file.
        foreign: Whether it is neither of a package that is read nor of the working folder.
    """

    def __init__(self, name: str, file: Path, foreign: bool = False) -> None:
        self.name = name
        self.foreign = foreign
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self._package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        self._text = file.read_text(encoding="utf-8")
        for statement in _flat(ast.parse(self._text).body):
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
        stars = self.every_star()
        known = {
            named
            for one in (self, *stars)
            if one is not None
            for named in (*one.classes, *one.functions, *one.aliases, *one.imports)
        }
        told = None not in stars and not {name, "__getattr__"} & known
        return not told or any(one is not None and one.hides(name) for one in (self, *stars))

    def hides(self, name: str) -> bool:
        """Return ``True`` if the module may have a name by other means than a statement."""
        if is_read(self.name) or is_spelt(self.name):
            return False
        spelt = re.search(rf"\b{re.escape(name)}\b", self._text)
        return bool(spelt or _HIDDEN.search(self._text))

    def every_star(self) -> list[Module | None]:
        """Return the modules from which everything is imported, at any depth."""
        found: dict[str, Module | None] = {}
        pending = [*self.stars]
        while pending:
            home = pending.pop()
            if home not in found:
                found[home] = star = module(home, listed=True)
                pending += [] if star is None else star.stars
        return [*found.values()]

    def named(self) -> list[str]:
        """Return the names that the module itself defines or imports, and may be classes."""
        return [*self.classes, *self.imports]

    def names(self) -> list[str]:
        """Return the names that may be those of classes."""
        stars = [star for star in self.every_star() if star is not None]
        return [name for one in (self, *stars) for name in one.named()]


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
    """Return the folder of an installed package; ``None`` for anything else."""
    spec = None
    with suppress(ValueError):  # modules of the interpreter's own have no spec
        spec = find_spec(package)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).parent


def _own_folder(top: str) -> Path | None:
    """Return the place of a package or module, without suffix, if it is in the working folder."""
    here = Path.cwd()
    spec = PathFinder.find_spec(top)
    # One of this name that is installed comes first.
    installed = (
        spec is not None and spec.origin is not None and here not in Path(spec.origin).parents
    )
    return None if installed else here / top


def module(name: str, listed: bool = False) -> Module | None:
    """Return the source of a module of a package that is read, or of the working folder.

    Args:
        name: Its dotted name.
        listed: Whether modules of all installed packages count, which are foreign.
    """
    top, *rest = name.split(".")
    if not all(part.isidentifier() for part in (top, *rest)):
        return None
    file = _file(_folder(top) if top in _READ else _own_folder(top), rest)
    foreign = file is None and listed and top not in _READ
    if foreign:
        file = _file(_folder(top), rest)
    return None if file is None else _parsed(name, file, foreign, file.stat().st_mtime_ns)


def _file(folder: Path | None, parts: list[str]) -> Path | None:
    """Return the file of a module below the folder of its package."""
    if folder is None:
        return None
    place = folder.joinpath(*parts)
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


@cache
def _parsed(name: str, file: Path, foreign: bool, changed: int) -> Module | None:
    try:
        return Module(name, file, foreign)
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


def lacks(path: str) -> bool:
    """Return ``True`` if there is no module of a path, or its source has no such name."""
    home, _, name = path.rpartition(".")
    found = module(home, listed=True)
    if found is None:
        return not _exists(home)
    return not found.may_have(name)


def _exists(module: str) -> bool:
    """Return ``False`` if neither an installed package nor the working folder can have a module."""
    top = module.partition(".")[0]
    return find_spec(top) is not None or Path(top).is_dir() or Path(f"{top}.py").is_file()


def names_of(path: str) -> list[str]:
    """Return the paths of all that may be meant by a path, in its module."""
    found = module(path.rpartition(".")[0], listed=True)
    if found is None:
        return []
    # Networks of torchvision are made by functions.
    homes = [] if is_read(found.name) else [found, *filter(None, found.every_star())]
    names = [*found.names(), *(name for home in homes for name in home.functions)]
    return [f"{found.name}.{name}" for name in names if name[0] != "_"]


def is_read(home: str) -> bool:
    """Return ``True`` for a module of a package whose source is what will be imported."""
    return home.partition(".")[0] in _READ


def is_spelt(home: str) -> bool:
    """Return ``True`` for a module of a package whose sources spell all that it has."""
    return home.partition(".")[0] in _SPELT


def assigned(statement: ast.stmt) -> list[str]:
    """Return the names to which a statement gives a value."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
        case ast.Assign(targets=targets):
            return [one.id for one in targets if isinstance(one, ast.Name)]
    return []
