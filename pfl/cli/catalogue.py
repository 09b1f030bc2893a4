"""The one place in which classes are looked up by name."""

from __future__ import annotations

import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pfl.cli import known
from pfl.cli.known import KINDS, BrokenError, Known
from pfl.core.failure import error_line
from pfl.imports import plugins
from pfl.imports.plugins import PACKAGES

# Listed beside :data:`KINDS`; they have no base class in this project.
METRICS = "metrics"
# Base classes of what else a configuration may name.
_OTHERS = (
    "torch.nn.Module",
    "torch.optim.Optimizer",
    "pfl.federation.sampling.Sampler",
    "pfl.engines.base.Engine",
    "pfl.federation.run.Callback",
    "pfl.training.uplink.UplinkStep",
    "datamodules.Augmentation",
    "lightning.pytorch.loggers.Logger",
)


@cache
def load() -> None:
    """Import the project's methods, networks, data sets, partitioners and engines.

    A module that cannot be imported is left out, and the file at fault is named on stderr.
    """
    faults: dict[str, str] = {}
    for package in ("lightning_modules", "datamodules", "pfl.engines", "pfl.callbacks"):
        homes = _folders(package)
        # walk_packages imports packages itself; an import that fails there fails again below.
        for module in pkgutil.walk_packages(homes, f"{package}.", onerror=lambda name: None):
            try:
                import_module(module.name)
            except Exception as error:
                faults[_file_at_fault(error, homes) or module.name] = error_line(error)
    for plugin in plugins.installed(*plugins.GROUPS, "pfl.callbacks", "pfl.engines", "pfl.uplink"):
        try:
            plugin.load()
        except Exception as error:
            faults[f"the plug-in {plugin.value}"] = error_line(error)
    for file, fault in faults.items():
        print(f"pfl: {file} is left out because it cannot be imported: {fault}", file=sys.stderr)


def listed(kind: str) -> list[Known]:
    """Return the classes of one of :data:`KINDS`, or ``metrics``: the project's, and plug-ins'.

    Abstract and private classes are left out; metrics are those of plug-ins alone.
    """
    items = [item for item in known.classes().values() if item.kind == kind]
    groups = (group for group in plugins.GROUPS if (group == "pfl.metrics") == (kind == METRICS))
    if points := plugins.installed(*groups):
        load()
        base = object if kind == METRICS else find(KINDS[kind])
        for point in points:
            with suppress(Exception):  # load() has reported it
                if issubclass(item := point.load(), base):
                    name = f"{point.module.partition('.')[0]}.{item.__name__}"
                    items.append(Known(name, known.sentence(item)))
    return sorted(items, key=lambda item: item.name.lower())


def import_from_working_folder(path: str) -> None:
    """Import the module of a dotted path if it lies in the working folder.

    Errors are left to whoever looks for the object.
    """
    if _in_working_folder(path.rpartition(".")[0]):
        with suppress(ImportError):
            find(path)


def find(path: str) -> Any:  # noqa: ANN401
    """Return the object at a dotted path.

    Raises:
        BrokenError: The module exists, but cannot be imported.
        ImportError: There is no such module, or nothing of that name in it.
    """
    home, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        raise ImportError(f"there is no {path}")
    try:
        with _working_folder(home):
            return getattr(import_module(home), name)
    except (AttributeError, ValueError) as error:
        raise ImportError(f"there is no {path}") from error
    except ModuleNotFoundError as error:
        if f"{home}.".startswith(f"{error.name}."):
            raise
        raise BrokenError(f"{path} cannot be imported: {error}") from error
    except Exception as error:
        raise BrokenError(f"{path} cannot be imported: {error_line(error)}") from error


def spelling(name: str) -> str:
    """Return a name, or the full path of this project's class if another library uses it too."""
    return clashes().get(name, name)


def neighbours(path: str) -> list[str]:
    """Return the dotted paths of everything in the module of a dotted path, if it is imported."""
    home = path.rpartition(".")[0]
    return [f"{home}.{name}" for name in dir(sys.modules[home])] if home in sys.modules else []


def classes() -> dict[str, type]:
    """Return every class that can be named without its module, by name."""
    return {item.__name__: item for item in _everything()}


@cache
def clashes() -> dict[str, str]:
    """Return the full paths of this project's classes whose names other libraries use too."""
    homes: dict[str, set[str]] = {}
    for item in _everything():
        homes.setdefault(item.__name__, set()).add(f"{item.__module__}.{item.__name__}")
    return {
        name: path
        for name, paths in homes.items()
        for path in paths
        if len(paths) > 1 and path.startswith(PACKAGES)
    }


def reports() -> list[str]:
    """Return the names of all values that servers of imported methods report for each client."""
    from pfl.core.server import Server

    servers: Iterator[Any] = _descendants(Server)
    return list(dict.fromkeys(name for server in servers for name in server.reports))


def _folders(package: str) -> Sequence[str]:
    """Return the folders of one of this project's packages, which are cheap to import.

    Raises:
        BrokenError: Another module or folder of the same name hides the package.
    """
    module = import_module(package)
    home = Path(__file__).parents[2]
    folders: Sequence[str] = getattr(module, "__path__", ())
    if not any(Path(folder).is_relative_to(home) for folder in folders):
        hiding = getattr(module, "__file__", None) or next(iter(folders), "?")
        raise BrokenError(
            f"{hiding} hides pfl's own package {package}: rename it, or run pfl from another folder"
        )
    return folders


@contextmanager
def _working_folder(module: str) -> Iterator[None]:
    """Add the working folder to the import path while one of its modules is imported.

    Otherwise a library that looks for an optional package might find a file of its name there.
    """
    folder = str(Path.cwd())
    if not {folder, ""}.isdisjoint(sys.path) or not _in_working_folder(module):
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _in_working_folder(module: str) -> bool:
    """Return ``True`` if a module lies in the working folder."""
    parts = module.split(".")
    places = (
        Path(f"{parts[0]}.py"),
        Path(parts[0], "__init__.py"),
        Path(*parts[:-1], f"{parts[-1]}.py"),
    )
    return all(part.isidentifier() for part in parts) and any(map(Path.is_file, places))


def _everything() -> Iterator[type]:
    for path in (*KINDS.values(), *_OTHERS):
        try:
            base = find(path)
        except ImportError:  # load() has reported the broken file
            continue
        yield from _descendants(base)


def _descendants(base: type) -> Iterator[type]:
    yield base
    children: list[type] = type.__subclasses__(base)
    for child in children:
        yield from _descendants(child)


def _file_at_fault(error: Exception, homes: Iterable[str]) -> str | None:
    """Return the last file below ``homes`` in an error's traceback."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        files.append(error.filename)
    inside = [file for file in files if any(Path(file).is_relative_to(home) for home in homes)]
    return inside[-1] if inside else None
