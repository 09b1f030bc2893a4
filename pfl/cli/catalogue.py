"""Lookup of classes by name."""

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
# Base classes of everything else that a configuration may name.
_OTHERS = (
    "torch.nn.Module",
    "torch.optim.Optimizer",
    "pfl.federation.sampling.Sampler",
    "pfl.engines.base.Engine",
    "pfl.federation.run.Callback",
    "pfl.training.uplink.UplinkStep",
    "pfl.federation.evaluation.Evaluation",
    "datamodules.Augmentation",
    "lightning.pytorch.loggers.Logger",
)


@cache
def load() -> None:
    """Import the project's methods, networks, data sets, partitioners and engines.

    Modules that cannot be imported are skipped, with a warning on stderr that names the faulty
    file.
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
    groups = ("pfl.callbacks", "pfl.engines", "pfl.evaluations", "pfl.uplink")
    for plugin in plugins.installed(*plugins.GROUPS, *groups):
        try:
            plugin.load()
        except Exception as error:
            faults[f"the plug-in {plugin.value}"] = error_line(error)
    for file, fault in faults.items():
        print(f"pfl: {file} is skipped because it cannot be imported: {fault}", file=sys.stderr)


def listed(kind: str) -> list[Known]:
    """Return the classes of the project and its plug-ins of one of :data:`KINDS`, or ``metrics``.

    Abstract and private classes are left out; metrics come from plug-ins only.
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
    """Import the module of a dotted path if it is in the working folder.

    Import errors are ignored here; :func:`find` raises them.
    """
    if _in_working_folder(path.rpartition(".")[0]):
        with suppress(ImportError):
            find(path)


def find(path: str) -> Any:  # noqa: ANN401
    """Return the object at a dotted path.

    Raises:
        BrokenError: The module exists but cannot be imported.
        ImportError: The module does not exist or does not define that name.
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
    """Return a class name, expanded to the project's full path if another library has it too."""
    return clashes().get(name, name)


def neighbours(path: str) -> list[str]:
    """Return the dotted paths of all members of a path's module, if it is imported."""
    home = path.rpartition(".")[0]
    return [f"{home}.{name}" for name in dir(sys.modules[home])] if home in sys.modules else []


def classes() -> dict[str, type]:
    """Map names to the classes that can be given without their module."""
    return {item.__name__: item for item in _everything()}


@cache
def clashes() -> dict[str, str]:
    """Map names that other libraries use too to the full paths of this project's classes."""
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
    """Return the names of all per-client values reported by servers of imported methods."""
    from pfl.core.server import Server

    servers: Iterator[Any] = _descendants(Server)
    return list(dict.fromkeys(name for server in servers for name in server.reports))


def _folders(package: str) -> Sequence[str]:
    """Return the folders of one of this project's packages.

    Raises:
        BrokenError: A module or folder of the same name shadows the package.
    """
    module = import_module(package)
    home = Path(__file__).parents[2]
    folders: Sequence[str] = getattr(module, "__path__", ())
    if not any(Path(folder).is_relative_to(home) for folder in folders):
        hiding = getattr(module, "__file__", None) or next(iter(folders), "?")
        raise BrokenError(
            f"{hiding} shadows pfl's package {package}: rename it, or run pfl from another folder"
        )
    return folders


@contextmanager
def _working_folder(module: str) -> Iterator[None]:
    """Add the working folder to the import path while one of its modules is imported.

    At other times, a file there could shadow an optional package that a library looks for.
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
    """Return ``True`` if a module is in the working folder."""
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
    """Return the last file in an error's traceback that is below ``homes``."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        files.append(error.filename)
    inside = [file for file in files if any(Path(file).is_relative_to(home) for home in homes)]
    return inside[-1] if inside else None
