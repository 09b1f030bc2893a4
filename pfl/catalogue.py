"""What a configuration may name by its class name alone, and lists of it."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.table import Table

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
    "pfl.sampling.Sampler",
    "pfl.engines.base.Engine",
    "pfl.callbacks.Callback",
    "datamodules.Augmentation",
    "lightning.pytorch.loggers.Logger",
)
# Where the project's own classes live.
PACKAGES = ("lightning_modules.", "datamodules.", "pfl.")


def load() -> None:
    """Import the project's methods, networks, data sets, partitioners and engines."""
    for package in ("lightning_modules", "lightning_modules.parts", "pfl.engines"):
        for module in pkgutil.iter_modules(import_module(package).__path__):
            import_module(f"{package}.{module.name}")
    data = import_module("datamodules")
    for name in data.__all__:
        getattr(data, name)


def find(path: str) -> Any:  # noqa: ANN401
    """What a dotted path names.

    Raises:
        ImportError: There is no such module, or nothing of that name in it.
    """
    home, _, name = path.rpartition(".")
    try:
        return getattr(import_module(home), name)
    except (AttributeError, ValueError) as error:
        raise ImportError(f"there is no {path}") from error


def today(path: str) -> str:
    """Return where a class of this project is that an earlier version had at ``path``."""
    if not path.startswith(PACKAGES):
        return path
    name = path.rpartition(".")[2]
    try:
        find(path)
    except ImportError:
        return next((f"{kind.__module__}.{name}" for kind in own() if kind.__name__ == name), path)
    return path


def neighbours(path: str) -> list[str]:
    """Dotted paths of everything in the module that a dotted path names, if there is such a one."""
    home = path.rpartition(".")[0]
    try:
        return [f"{home}.{name}" for name in dir(import_module(home))]
    except (ImportError, ValueError):
        return []


def classes() -> dict[str, type]:
    """Every class that may be named without its module, by that name."""
    return {kind.__name__: kind for kind in _everything()}


def own() -> list[type]:
    """Every class of this project that a configuration may name."""
    return [kind for kind in _everything() if kind.__module__.startswith(PACKAGES)]


@cache
def clashes() -> dict[str, str]:
    """Names of the project's own classes that other libraries use too, with their full paths."""
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
    """Names of what the servers of all methods, as far as they were imported, say of clients."""
    servers: Iterator[Any] = _descendants(find("pfl.server.Server"))
    return list(dict.fromkeys(name for server in servers for name in server.reports))


def of_kind(kind: str) -> list[type]:
    """The project's own classes of one of :data:`KINDS` that can be used, by name.

    Raises:
        ValueError: There is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no list of {kind!r}; there are {', '.join(KINDS)}")
    base = find(KINDS[kind])
    package = base.__module__.partition(".")[0]
    found = {
        item
        for item in _descendants(base)
        if item is not base
        and not inspect.isabstract(item)
        and not item.__name__.startswith("_")
        and item.__module__.startswith(f"{package}.")
    }
    return sorted(found, key=lambda item: item.__name__.lower())


def show(kind: str) -> None:
    """Print the classes of one kind, each with the first sentence of its description."""
    table = Table(box=None, pad_edge=False)
    for column in (kind, "what it is"):
        table.add_column(column)
    for item in of_kind(kind):
        table.add_row(item.__name__, _sentence(item))
    Console().print(table)


def _everything() -> Iterator[type]:
    for path in (*KINDS.values(), *_OTHERS):
        yield from _descendants(find(path))


def _descendants(base: type) -> Iterator[type]:
    yield base
    children: list[type] = type.__subclasses__(base)
    for child in children:
        yield from _descendants(child)


def _sentence(item: type) -> str:
    """The first line of a docstring, without its markup."""
    first = (inspect.getdoc(item) or "").partition("\n")[0]
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", first)
