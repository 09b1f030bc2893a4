"""The cells of a table and the command lines of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, cast

from pfl.cli.explain import UsageError, as_flags
from pfl.extras.papers import reported
from pfl.extras.papers.reported import Reported
from pfl.extras.papers.spec import CellSettings, TableFile
from pfl.results.runs import At


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        row: Label of its row.
        column: Name and label of each axis.
        words: Command line of its runs, without seeds.
        metric: Column of ``metrics.csv``.
        at: Rounds from which the number is taken.
        reported: The paper's number, if it reports one.
        skip: Reason why the cell is not run; ``None`` if it is.
    """

    row: str
    column: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    metric: str
    at: At
    reported: Reported | None
    skip: str | None

    @property
    def label(self) -> str:
        """Name of the cell in messages, such as ``FedPer, beta=0.1, P=0.4``."""
        return ", ".join([self.row, *(f"{axis}={label}" for axis, label in self.column)])


def expand(
    table: TableFile, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> list[Cell]:
    """Return the cells of a table, or of some rows and columns, row by row.

    A column is chosen by its label, or as ``<axis>=<label>``.

    Raises:
        UsageError: A row or column does not exist, or a reported number cannot be found.
    """
    chosen, options = _rows(table, rows), _options(table, columns)
    return [_cell(table, row, column) for row in chosen for column in product(*options)]


def _rows(table: TableFile, wanted: Sequence[str] | None) -> list[str]:
    for row in wanted or ():
        if row not in table.rows:
            raise UsageError(f"--rows {row}: {table.path} has the rows {', '.join(table.rows)}")
    return [row for row in table.rows if wanted is None or row in wanted]


def _options(table: TableFile, wanted: Sequence[str] | None) -> list[list[tuple[str, str]]]:
    """Return the chosen options of each axis, by default all, in the table's order."""
    known = [(axis, label) for axis, options in table.axes.items() for label in options]
    asked: dict[str, set[str]] = {}
    for word in wanted or ():
        fits = [(a, label) for a, label in known if word in (label, f"{a}={label}")]
        if len(fits) != 1:
            choices = ", ".join(f"{axis}={label}" for axis, label in fits or known)
            what = "ambiguous, could be any of" if fits else "choose from"
            raise UsageError(f"--columns {word}: {table.path}: {what} {choices}")
        asked.setdefault(fits[0][0], set()).add(fits[0][1])
    return [
        [(axis, label) for label in options if label in asked.get(axis, options)]
        for axis, options in table.axes.items()
    ]


def _cell(table: TableFile, row: str, column: tuple[tuple[str, str], ...]) -> Cell:
    parts = [
        table.common,
        *(table.axes[axis][label] for axis, label in column),
        table.row_settings[row],
        *(cell for cell in table.cells if cell.fits(row, dict(column))),
    ]
    name, _, at = [part.metric for part in parts if part.metric][-1].rpartition("/")
    cell = Cell(
        row=row,
        column=column,
        words=_words(parts),
        metric=name,
        at=cast(At, at),
        reported=None,
        skip=next((part.skip for part in parts if part.skip), None),
    )
    return replace(cell, reported=_reported(table, cell, parts))


def _words(parts: Sequence[CellSettings]) -> tuple[str, ...]:
    """Return the flags of all parts: first configuration files, then settings."""
    configs = [word for part in parts for file in part.config for word in ("--config", file)]
    settings: dict[str, Any] = {}
    for part in parts:
        for key, value in part.set.items():
            # Move the key to the end, as one in between may replace the object that it belongs to.
            settings.pop(key, None)
            settings[key] = value
    return (*configs, *as_flags(settings))


def _reported(table: TableFile, cell: Cell, parts: Sequence[CellSettings]) -> Reported | None:
    if any(part.reported is False for part in parts):
        return None
    wanted = {"method": cell.row}
    for part in parts:
        wanted |= part.reported or {}
    try:
        return reported.find(wanted)
    except LookupError as error:
        hint = "set reported: false if the paper prints none"
        raise UsageError(f"{table.path}: {cell.label}: reported: {error}; {hint}") from error
