"""Pictures of the tables that analyses wrote into run folders."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pandas as pd

from pfl.disk.nearest import nearest
from pfl.imports import modules, plugins
from pfl.imports.plugins import Plugin, PluginError
from pfl.results.files import RunError, read_table
from pfl.results.runs import At, RunFolder
from pfl.results.settings import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The table of each setting that has one, by its label.
Tables: TypeAlias = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    Attributes:
        caption: A sentence that says what it shows.
        draw: Draws it from settings, a metric, and the rounds to take numbers from.
        suits: Whether a run has the data for it, so that it is drawn by default.
    """

    caption: str
    draw: Callable[[Sequence[Setting], str, At], Figure]
    suits: Callable[[RunFolder], bool] = lambda run: True


def of_table(
    caption: str,
    file: str,
    callback: str,
    needed: Sequence[str],
    drawing: Callable[[Tables], Figure],
) -> Kind:
    """Return the kind of picture of a table that an analysis writes.

    It shows the first of several seeds of each setting, without rows of a round that a killed
    process did not finish.

    Args:
        caption: A sentence that says what it shows.
        file: Name of the table's file.
        callback: The callback that writes it.
        needed: Columns of the table, besides round and client.
        drawing: The function that draws it; it may raise ``RunError``.
    """

    def draw(settings: Sequence[Setting], metric: str, at: At) -> Figure:
        tables = {}
        for setting in settings:
            run = setting.runs[0]
            table = read_table(run.path / file, ("round", "client", *needed))
            if len(table := table[table["round"] <= run.round]):
                tables[setting.label] = table
        if not tables:
            how = f"run it with loop.callbacks: [{callback}]"
            raise RunError(f"no run has a file {file}: {how}")
        return drawing(tables)

    return Kind(caption, draw, lambda run: (run.path / file).is_file())


def brought(own: Mapping[str, str]) -> Mapping[str, Kind]:
    """Return the pictures of extras and plug-ins, by name.

    They are the mappings ``PICTURES`` of the modules in the entry-point group ``pfl.pictures``.

    Args:
        own: Import paths of all other pictures, whose names they may not have.
    """
    found: list[tuple[str, Plugin, Kind]] = []
    for plugin, module in plugins.loaded("pfl.pictures"):
        with plugin.noted():
            pictures = dict(module.PICTURES)
            typed = all(
                isinstance(name, str) and name.isprintable() and isinstance(one, Kind)
                for name, one in pictures.items()
            )
            plugin.check(typed, "a module whose PICTURES maps names to kinds of pictures")
            found += ((name, plugin, _guarded(plugin, one)) for name, one in pictures.items())
    return plugins.settle("picture", found, own)


def no_picture(name: str, known: Iterable[str]) -> str:
    """Return the message about a picture that runs do not have."""
    return f"no run reported {name!r} for its clients{nearest(name, known)}"


def told() -> set[str] | None:
    """Return the names of the pictures of extras and plug-ins by their sources, without an import.

    ``None`` if some source does not tell.
    """
    names = set[str]()
    for plugin in plugins.installed("pfl.pictures"):
        module = modules.module(plugin.path, listed=True)
        match None if module is None else module.aliases.get("PICTURES"):
            case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) for key in keys):
                names |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
            case _:
                return None
    return names


def _guarded(plugin: Plugin, kind: Kind) -> Kind:
    """Return a kind of picture whose errors name the package and spare the other pictures."""

    def draw(settings: Sequence[Setting], metric: str, at: At) -> Figure:
        try:
            with plugin.checked():
                return kind.draw(settings, metric, at)
        except PluginError as error:
            reason = error.__cause__
            raise (reason if isinstance(reason, RunError) else RunError(str(error))) from reason

    def suits(run: RunFolder) -> bool:
        with plugin.noted():
            return bool(kind.suits(run))
        return False

    return Kind(kind.caption, draw, suits)
