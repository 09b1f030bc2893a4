"""A table to be read, as a value; :mod:`pfl.results.sheets` prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Record = Mapping[str, str | float | int | None]


@dataclass(frozen=True)
class Sheet:
    """Rows of text under a title, and the unrounded numbers behind them.

    Attributes:
        title: One line.
        columns: Headings; a sheet whose headings are all empty has no line of them.
        rows: Cells as printed; the first of each row is its name.
        notes: Lines below the table.
        records: One mapping for each row, unrounded, for CSV files.
        optional: Headings of columns that a narrow terminal leaves out, the least important first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    records: Sequence[Record] = ()
    optional: Sequence[str] = ()

    @property
    def are_words(self) -> list[bool]:
        """For each column, whether it has words: the first one, and those of cells with letters."""
        cells = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [not n or any(cell[:1].isalpha() for cell in some) for n, some in enumerate(cells)]
