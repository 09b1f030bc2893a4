"""Pictures of the tables that analyses wrote into run folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import pandas as pd
from matplotlib.figure import Figure

from pfl.imports import plugins
from pfl.results.files import RunError, read_table
from pfl.results.runs import At, RunFolder
from pfl.results.settings import Setting

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


@cache
def brought() -> Mapping[str, Kind]:
    """Return the pictures of extras and plug-ins, by name.

    They are the mappings ``PICTURES`` of the modules in the entry-point group ``pfl.pictures``.
    """
    modules = plugins.loaded("pfl.pictures")
    return {name: picture for module in modules for name, picture in module.PICTURES.items()}
