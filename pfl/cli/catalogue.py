"""What there is: the classes that a configuration may name, and the options of the loop.

Lists and helps are read from the classes' source (:mod:`pfl.imports.stubs`) and import nothing
heavy; :func:`load` imports the classes.
"""

from __future__ import annotations

import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from inspect import isabstract, isclass
from pathlib import Path
from typing import Any, NamedTuple

from pfl.cli.commands import LOOP_DEFAULTS
from pfl.core.failure import error_line
from pfl.imports import hints, modules, plugins, signatures, stubs
from pfl.imports.plugins import PACKAGES, Plugin

# What can be listed, with the base class of each kind.
KINDS = {
    "methods": "lightning_modules.base.ClientModule",
    "nets": "lightning_modules.nets.SplitNet",
    "data": "datamodules.ClientData",
    "partitions": "datamodules.Partitioner",
}
# Function that shows data. pfl imports no methods or data sets itself; it finds them by name.
INSPECT = "datamodules.inspect"
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
    "pfl.core.task.Task",
    "lightning.pytorch.loggers.Logger",
)
# Base classes of what plug-ins register, by their groups.
_BASES = {
    "pfl.methods": [KINDS["methods"]],
    "pfl.data": [KINDS["data"], KINDS["partitions"]],
    "pfl.nets": ["torch.nn.Module"],
    "pfl.metrics": ["torchmetrics.Metric"],
    "pfl.engines": ["pfl.engines.base.Engine"],
    "pfl.evaluations": ["pfl.federation.evaluation.Evaluation"],
    "pfl.callbacks": ["pfl.federation.run.Callback"],
    "pfl.uplink": ["pfl.training.uplink.UplinkStep"],
}
# Groups of modules, all of whose classes are meant.
_ROOMS = ("pfl.callbacks", "pfl.uplink")


class BrokenError(ImportError):
    """A module exists but cannot be imported."""


class Listed(NamedTuple):
    """A class in a list.

    Attributes:
        name: Name, preceded by the package for a plug-in.
        sentence: First line of the docstring, without markup.
    """

    name: str
    sentence: str


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
    for file, fault in faults.items():
        print(f"pfl: {file} is skipped because it cannot be imported: {fault}", file=sys.stderr)
    _brought()


def listed(kind: str) -> list[Listed]:
    """Return the classes of the project and its plug-ins of one of :data:`KINDS`, or ``metrics``.

    Abstract and private classes are left out; metrics come from plug-ins only.
    """
    items = [] if kind == METRICS else [*_own(KINDS[kind])]
    groups = {group for group in plugins.GROUPS if (group == "pfl.metrics") == (kind == METRICS)}
    if plugins.installed(*groups):
        load()
        base = object if kind == METRICS else find(KINDS[kind])
        for plugin, item in _brought():
            with plugin.noted():
                if plugin.group in groups and issubclass(item, base):
                    name = f"{plugin.module.partition('.')[0]}.{item.__name__}"
                    items.append(Listed(name, sentence(item)))
    return sorted(items, key=lambda item: item.name.lower())


@cache
def _brought() -> list[tuple[Plugin, type]]:
    """Return the classes of other packages' plug-ins that have names of their own."""
    found: list[tuple[str, Plugin, tuple[Plugin, type]]] = []
    for group in filter(plugins.installed, _BASES):
        for name, plugin, item in _classes_of(group):
            found.append((name, plugin, (plugin, item)))
            if plugin.group in plugins.GROUPS and group != "pfl.metrics":
                found.append((plugin.name, plugin, (plugin, item)))
    ours = {name: paths[-1] for name, paths in modules.named().items()}
    kept = plugins.settle("class", found, ours)
    lost = {item for name, _, (_, item) in found if name not in kept}
    return list(dict.fromkeys(one for one in kept.values() if one[1] not in lost))


def _classes_of(group: str) -> list[tuple[str, Plugin, type]]:
    """Return the classes of other packages that the plug-ins of a group name or contain."""
    found = list[tuple[str, Plugin, type]]()
    try:
        bases = [find(path) for path in _BASES[group]]
    except ImportError:  # load() has reported the broken file
        return found
    for plugin, made in plugins.loaded(group, *([] if group in _ROOMS else bases)):
        with plugin.noted():
            for item in [made] if isclass(made) else [*getattr(made, "__dict__", {}).values()]:
                fits = isclass(item) and any(plugins.extends(item, one) for one in bases)
                if fits and _brings(plugin, item):
                    found.append((item.__name__, plugin, item))
    return found


def _brings(plugin: Plugin, item: type) -> bool:
    """Return ``True`` for a class of another package that a plug-in names, or that it contains."""
    home = plugin.module.partition(".")[0]
    named = bool(plugin.attr) or item.__module__.partition(".")[0] == home
    return named and not f"{item.__module__}.".startswith(PACKAGES)


def _own(path: str) -> Iterator[Listed]:
    """Yield the project's classes that derive from the one at a path."""
    base, room = stubs.stub(path), f"{path.partition('.')[0]}."
    for name, paths in modules.named().items():
        for one in paths:
            if one.startswith(room) and name[0] != "_":
                made = stubs.stub(one)
                if made not in (None, base) and base in made.__mro__ and not isabstract(made):
                    yield Listed(name, sentence(made))


def sentence(described: type) -> str:
    """Return the first line of a class's docstring, without markup."""
    return unmarked((described.__doc__ or "").partition("\n")[0])


def unmarked(text: str) -> str:
    """Remove the markup of a docstring."""
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text).replace("``", "")


@cache
def loop_options() -> dict[str, str]:
    """Return the help of each option of the loop: what it is, its type and its default."""
    loop = stubs.resolved("pfl.loop.FederatedLoop")
    settings = stubs.resolved("pfl.federation.settings.Settings")
    args = re.search(r"\nArgs:\n(.*?)\n\n", settings.__doc__, re.DOTALL)
    lines = re.split(r"^    (?=\w)", args[1] if args else "", flags=re.MULTILINE)[1:]
    said, helps = dict(line.split(": ", 1) for line in lines), {}
    for name, option in (signatures.parameters(loop) or {}).items():
        usual = LOOP_DEFAULTS.get(name)
        usual = usual if isinstance(usual, str) else repr(option.default)
        text = " ".join(unmarked(said[name]).split())
        helps[name] = f"{text} ({hints.spelt(hints.bare(option.annotation))}, default: {usual})"
    del helps["seed"]
    return helps


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


def neighbours(path: str) -> dict[str, Any]:
    """Return what a path's module has to call by dotted paths, if the module is imported."""
    home = path.rpartition(".")[0]
    members = vars(sys.modules[home]) if home in sys.modules else {}
    return {f"{home}.{name}": one for name, one in members.items() if callable(one)}


def is_closed() -> bool:
    """Return ``True`` if no other package's plug-in brings classes."""
    return all(plugin.is_own for plugin in plugins.installed(*_BASES))


def classes() -> dict[str, type]:
    """Map names to the classes that can be given without their module."""
    load()
    found: dict[str, list[type]] = {}
    for item in _everything():
        found.setdefault(item.__name__, []).append(item)
    homes = {one.module.partition(".")[0] for one in plugins.installed(*_BASES) if not one.is_own}

    def meant(items: Sequence[type]) -> type | None:
        if own := [item for item in items if f"{item.__module__}.".startswith(PACKAGES)]:
            return own[-1]
        tops = {item.__module__.partition(".")[0] for item in items}
        return items[-1] if len(tops & homes) < 2 else None

    chosen = {name: meant(items) for name, items in found.items()}
    return {name: item for name, item in chosen.items() if item is not None}


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
