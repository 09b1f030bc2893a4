"""A table of cells: errors name file, line and column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from datamodules.checks import require
from datamodules.record import Lines
from datamodules.tables import faults
from datamodules.tables.columns import Column, Spelling
from datamodules.tables.dates import dates_of
from datamodules.targets import Floats, Ints

# Networks compute in single precision.
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of cells, with the line of each row for error messages.

    ``table[name]`` is a :class:`Column`.

    Attributes:
        path: The file, for error messages.
        frame: Columns of texts, or of float64 with NaN for missing values.
        unit: Name of a row in messages: ``line`` or ``row``.
        spelling: Spelling of texts.
        line: Function from a row to its line in the file; by default rows are numbered from 1.
        refused: Reasons why columns cannot be used, by name.
        lines: Lines and rows of a text file.
        unread: Lines on parts of the file that are not read.
        rows: (n,) the row of each in the file; by default all in order.
    """

    path: Path
    frame: pd.DataFrame
    unit: str = "row"
    spelling: Spelling = field(default_factory=Spelling)
    line: Callable[[int], int] = lambda row: row + 1
    refused: Mapping[str, str] = field(default_factory=dict)
    lines: Lines | None = None
    unread: Sequence[str] = ()
    rows: Ints | None = None
    _columns: dict[str, Column] = field(default_factory=dict, init=False)

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order."""
        return [str(name) for name in self.frame.columns]

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            if name not in self.frame.columns:
                unread = f"; {self.unread[0]}" if self.unread else ""
                raise ValueError(
                    f"{self.path} has no column {name!r}, {self._instead(name)}{unread}"
                )
            require(name not in self.refused, f"{self.path}: {name!r} {self.refused.get(name)}")
            self._columns[name] = Column(
                name, self.frame[name].to_numpy(), self.spelling, self.place
            )
        return self._columns[name]

    def _instead(self, name: str) -> str:
        """Return the columns there are, and which may be meant."""
        for row in range(min(5, len(self))):
            if name in (str(cell).strip() for cell in self.frame.iloc[row]):
                return faults.named_below(self.columns, self.place(row))
        return faults.other_name(self.columns, name)

    def take(self, rows: Ints) -> Table:
        """Select rows."""
        every = np.arange(len(self)) if self.rows is None else self.rows
        return replace(self, frame=self.frame.iloc[rows], rows=every[rows])

    def place(self, row: int) -> str:
        """Return the place of a row in its file, such as ``line 7``."""
        return f"{self.unit} {self.line(row if self.rows is None else int(self.rows[row]))}"

    def numbers(self, name: str, hint: str = "") -> Floats:
        """Return the (n,) numbers of a column, NaN if missing.

        Args:
            name: Name of the column.
            hint: Text added to the error message if a value is not a number.

        Raises:
            ValueError: A value is not a number; the message names file, line and column.
        """
        column = self[name]
        advice = faults.no_number(name, column, column.bad) if len(column.bad) else ""
        self.refuse(name, column.bad, f"is not a finite number{advice}{hint}")
        large = np.flatnonzero(np.abs(column.numbers) > _LARGEST)
        self.refuse(name, large, f"is too large for single precision (at most {_LARGEST:.3g})")
        return column.numbers

    def times(self, name: str) -> tuple[Floats, str]:
        """Return the (n,) numbers or dates of a column, and their kind.

        Dates are in seconds since 1970.

        Raises:
            ValueError: A value is neither a number nor a date.
        """
        column, form = self[name], self.spelling.date_format
        if column.dates is not None:
            return column.dates, "dates"
        if form is None and column.kind == "numbers":
            return column.numbers, "numbers"
        why = f"is not a date in the format {form}"
        if form is None:
            why = "is neither a number nor a date (2026-03-31); date_format sets another format"
        for text in column.present:
            if dates_of([text], form) is None and (form or np.isnan(self.spelling.number(text))):
                rows = np.array([cell == text for cell in column.texts])[column.codes]
                places = np.flatnonzero(rows & ~column.gone)
                self.refuse(name, places, why + faults.no_record(name, column, places))
        raise ValueError(
            f"{self.path}: {name!r} mixes dates and numbers, or only some have a time zone"
        )

    def refuse(self, name: str, rows: Ints, why: str) -> None:
        """Raise an error about the first of some rows, if there are any.

        Raises:
            ValueError: There is such a row; the message names file, line, column and value.
        """
        if len(rows):
            row = int(rows[0])
            raise ValueError(
                f"{self.path}, {self.place(row)}, column {name!r}: "
                f"{str(self.frame[name].iloc[row])[:200]!r} {why}"
            )

    def refuse_missing(self, name: str, advice: str = "") -> None:
        """Raise an error about the first missing value of a column.

        Raises:
            ValueError: A value is missing.
        """
        missing = self[name].gone
        if missing.any():
            why = faults.why_missing(self[name]) or advice
            self.refuse(name, np.flatnonzero(missing), f"is a missing value{why}")
