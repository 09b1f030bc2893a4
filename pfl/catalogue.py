"""What a configuration may name by its class name alone, and lists of it."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
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


def see_working_folder() -> None:
    """Let classes be found that stand beside a configuration, in a project of the user's own."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


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


def neighbours(path: str) -> list[str]:
    """Dotted paths of everything in the module that a dotted path names, if there is such a one."""
    home = path.rpartition(".")[0]
    try:
        return [f"{home}.{name}" for name in dir(import_module(home))]
    except (ImportError, ValueError):
        return []


def classes() -> dict[str, type]:
    """Every class that may be named without its module, by that name."""
    bases = [find(path) for path in (*KINDS.values(), *_OTHERS)]
    return {kind.__name__: kind for base in bases for kind in _descendants(base)}


@cache
def clashes() -> dict[str, str]:
    """Names of the project's own classes that other libraries use too, with their full paths."""
    homes: dict[str, set[str]] = {}
    for base in (find(path) for path in (*KINDS.values(), *_OTHERS)):
        for kind in _descendants(base):
            homes.setdefault(kind.__name__, set()).add(f"{kind.__module__}.{kind.__name__}")
    return {
        name: path
        for name, paths in homes.items()
        for path in paths
        if len(paths) > 1 and path.startswith(PACKAGES)
    }


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


def _descendants(base: type) -> Iterator[type]:
    yield base
    children: list[type] = type.__subclasses__(base)
    for child in children:
        yield from _descendants(child)


def _sentence(item: type) -> str:
    """The first line of a docstring, without its markup."""
    first = (inspect.getdoc(item) or "").partition("\n")[0]
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", first)
