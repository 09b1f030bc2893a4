"""The one place in which classes are looked up by name, and lists of them."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pfl.core import plugins
from pfl.results.identity import PACKAGES

# What can be listed, and the class that all of its kind derive from.
KINDS = {
    "methods": "lightning_modules.base.ClientModule",
    "nets": "lightning_modules.nets.SplitNet",
    "data": "datamodules.FederatedDataModule",
    "partitions": "datamodules.Partitioner",
}
# What else a configuration names: a class of each of these.
_OTHERS = (
    "torch.nn.Module",
    "torch.optim.Optimizer",
    "pfl.federation.sampling.Sampler",
    "pfl.engines.base.Engine",
    "pfl.federation.run.Callback",
    "datamodules.Augmentation",
    "lightning.pytorch.loggers.Logger",
)


# Rooms whose classes no configuration names.
_INTERNAL = ("pfl.cli.", "pfl.sweeps.", "pfl.tables.", "pfl.testing.")


class BrokenError(ImportError):
    """A module exists, but cannot be imported."""


@cache
def load() -> None:
    """Import the project's methods, networks, data sets, partitioners and engines.

    A module that cannot be imported is left out, and the file at fault is named on stderr.
    """
    faults: dict[str, str] = {}
    for package in ("lightning_modules", "datamodules", "pfl.engines", "pfl.callbacks"):
        folders = _folders(package)
        # The walk imports packages by itself; what fails there fails again in the loop.
        for module in pkgutil.walk_packages(folders, f"{package}.", onerror=lambda name: None):
            try:
                import_module(module.name)
            except Exception as error:
                faults[_file_at_fault(error, folders) or module.name] = _one_line(error)
    for plugin in plugins.installed():
        try:
            plugin.load()
        except Exception as error:
            faults[f"the plug-in {plugin.value}"] = _one_line(error)
    for file, fault in faults.items():
        print(f"pfl: {file} is left out, it cannot be imported: {fault}", file=sys.stderr)


def see_working_folder() -> None:
    """Let classes be found that stand beside a configuration, in a project of the user's own."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def find(path: str) -> Any:  # noqa: ANN401
    """Return the object that a dotted path names, or named before the object moved.

    Raises:
        BrokenError: The module exists, but cannot be imported.
        ImportError: There is no such module, or nothing of that name in it.
    """
    try:
        return _imported(path)
    except BrokenError:
        raise
    except ImportError:
        moved = [kind for kind in own() if _is_former(path, kind)]
        if not moved:
            raise
        return moved[0]


def spelling(name: str) -> str:
    """Return what the parser is to read for the name of a class.

    A class of this project is never taken for another library's of the same name, and a path from
    before a class of this project moved becomes the present one.
    """
    if name in clashes():
        return clashes()[name]
    if not name.startswith(PACKAGES):
        return name
    try:
        _imported(name)
    except BrokenError:
        return name
    except ImportError:
        moved = (f"{kind.__module__}.{kind.__name__}" for kind in own() if _is_former(name, kind))
        return next(moved, name)
    return name


def neighbours(path: str) -> list[str]:
    """Return the dotted paths of everything in the module that a dotted path names."""
    home = path.rpartition(".")[0]
    try:
        return [f"{home}.{name}" for name in dir(import_module(home))]
    except Exception:
        return []


def classes() -> dict[str, type]:
    """Return every class that may be named without its module, by that name."""
    return {kind.__name__: kind for kind in _everything()}


def own() -> list[type]:
    """Return every class of this project that a configuration may name."""
    named = (kind for kind in _everything() if kind.__module__.startswith(PACKAGES))
    return [kind for kind in named if not kind.__module__.startswith(_INTERNAL)]


@cache
def clashes() -> dict[str, str]:
    """Return full paths of the project's own classes whose names other libraries use too."""
    homes: dict[str, set[str]] = {}
    for kind in _everything():
        homes.setdefault(kind.__name__, set()).add(f"{kind.__module__}.{kind.__name__}")
    return {
        name: path
        for name, paths in homes.items()
        for path in paths
        if len(paths) > 1 and path.startswith(PACKAGES)
    }


def reports() -> list[str]:
    """Return what the servers of all imported methods report of their clients."""
    servers: Iterator[Any] = _descendants(find("pfl.core.server.Server"))
    return list(dict.fromkeys(name for server in servers for name in server.reports))


def of_kind(kind: str) -> list[type]:
    """Return the project's own classes of one of :data:`KINDS` that can be used, by name.

    Raises:
        ImportError: The class from which they derive cannot be imported.
        ValueError: There is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no list of {kind!r}; there are {', '.join(KINDS)}")
    base = find(KINDS[kind])
    home, brought = (
        base.__module__.partition(".")[0],
        {point.value for point in plugins.installed()},
    )
    found = {
        item
        for item in _descendants(base)
        if item is not base
        and not inspect.isabstract(item)
        and not item.__name__.startswith("_")
        and (package(item) == home or f"{item.__module__}:{item.__qualname__}" in brought)
    }
    return sorted(found, key=lambda item: item.__name__.lower())


def show(kind: str) -> None:
    """Print the classes of one kind, with the first sentence of their description.

    Those of a plug-in say which package brings them.
    """
    table = Table(box=None, pad_edge=False)
    for column in (kind, "what it is"):
        table.add_column(column)
    for item in of_kind(kind):
        foreign = not item.__module__.startswith(PACKAGES)
        name = f"{package(item)}.{item.__name__}" if foreign else item.__name__
        table.add_row(name, _sentence(item))
    Console().print(table)


def package(item: type) -> str:
    """Return the top-level package of a class."""
    return item.__module__.partition(".")[0]


def _folders(package: str) -> Sequence[str]:
    """Return the folders of one of this project's packages.

    Raises:
        BrokenError: Another module or folder of that name stands before it.
    """
    module = import_module(package)
    home = Path(__file__).parents[2]
    folders: Sequence[str] = getattr(module, "__path__", ())
    if not any(Path(folder).is_relative_to(home) for folder in folders):
        found = getattr(module, "__file__", None) or next(iter(folders), "?")
        raise BrokenError(
            f"{found} hides pfl's own package of the name {package}: rename it, or run pfl from "
            "another folder"
        )
    return folders


def _imported(path: str) -> Any:  # noqa: ANN401
    home, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        raise ImportError(f"there is no {path}")
    try:
        return getattr(import_module(home), name)
    except (AttributeError, ValueError) as error:
        raise ImportError(f"there is no {path}") from error
    except ModuleNotFoundError as error:
        if f"{home}.".startswith(f"{error.name}."):
            raise
        raise BrokenError(f"{path} cannot be imported: {error}") from error
    except Exception as error:
        raise BrokenError(f"{path} cannot be imported: {_one_line(error)}") from error


def _is_former(path: str, kind: type) -> bool:
    """Tell whether a path may be that of a class of this project before the class moved."""
    return path.startswith(PACKAGES) and path.rpartition(".")[2] == kind.__name__


def _everything() -> Iterator[type]:
    for path in (*KINDS.values(), *_OTHERS):
        try:
            base = _imported(path)
        except ImportError:  # load() has said which file is broken
            continue
        yield from _descendants(base)


def _descendants(base: type) -> Iterator[type]:
    yield base
    children: list[type] = type.__subclasses__(base)
    for child in children:
        yield from _descendants(child)


def _sentence(item: type) -> str:
    """Return the first line of a docstring, without its markup."""
    first = (inspect.getdoc(item) or "").partition("\n")[0]
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", first)


def _file_at_fault(error: Exception, folders: Iterable[str]) -> str | None:
    """Return the last file of a package that an error went through."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        files.append(error.filename)
    inside = [file for file in files if any(Path(file).is_relative_to(home) for home in folders)]
    return inside[-1] if inside else None


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
