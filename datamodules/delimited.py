"""Text files of tables: separators, and the lines of rows."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from datamodules.checks import require
from datamodules.record import Lines

_SEPARATORS = ";\t|,"
# So many lines show how a file is separated.
_SHOWN = 50
_DECIMAL = re.compile(r"[-+]?\d+,\d+")


@dataclass(frozen=True)
class Text:
    """The text of a table and its separator, as rows of cells."""

    path: Path
    text: str
    separator: str

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the last line of each row that is not blank, and its cells."""
        limit = csv.field_size_limit(len(self.text) + 1)
        lines = io.StringIO(self.text, newline="")
        try:
            reader = csv.reader(lines, delimiter=self.separator, skipinitialspace=True)
            for row in reader:
                if "".join(row).strip() or row[1:]:
                    yield reader.line_num, row
        finally:
            csv.field_size_limit(limit)

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The last line of each row that is not blank, and its number of cells."""
        return [(line, len(cells)) for line, cells in self.rows()]

    def first(self) -> list[str] | None:
        """Return the cells of the first row."""
        return next(([cell.strip() for cell in cells] for _, cells in self.rows()), None)

    def line(self, row: int) -> int:
        """Return the line of a row, counted with the header."""
        return self.places[row][0] if row < len(self.places) else row + 1

    def check_widths(self, width: int) -> None:
        """Reject rows with more or fewer cells than there are columns.

        Raises:
            ValueError: There is such a row; the message says what may be wrong.
        """
        for number, cells in self.places:
            if cells != width:
                raise ValueError(
                    f"{self.path}, line {number}: {cells} values for {width} columns"
                    f"{self._advice(number, cells, width)}"
                )

    def _advice(self, number: int, cells: int, width: int) -> str:
        """Return what may be wrong with a row of another width."""
        if other := self._other_separator():
            return f"; {other}"
        if cells > width and (quotes := self._quoted()):
            return f"; {quotes}a cell with {self.separator!r} in it needs them"
        widths = Counter(count for _, count in self.places[:_SHOWN])
        usual = max(widths, key=lambda count: (widths[count], count))
        start = next(line for line, count in self.places if count == usual)
        if usual == width + 1 and width > 1:
            return (
                "; rows have a separator at their end, a decimal comma or a row's number that the "
                "header lacks: write both alike, or use another separator"
            )
        if usual != width and usual > 1 and start > self.places[0][0]:
            return (
                f"; the names of the columns seem to stand in line {start}: remove what is above "
                f"(tail -n +{start} {self.path} > table.csv)"
            )
        if number == self.places[-1][0] and cells < width:
            return "; it is the last line: a note, or cut off"
        if cells > width:
            return f"; a cell with {self.separator!r} in it needs quotes"
        if any(sign in self.text for sign in _SEPARATORS if sign != self.separator):
            return f"; if its columns are separated by another sign, write {self.separator!r} alone"
        return "; write all of its values, or remove it"

    def _quoted(self) -> str:
        """Return what may be wrong with the quotes of cells that were taken apart."""
        if '\\"' in self.text:
            return 'a quote within quotes is written twice, "", and not \\": '
        for sign in ("'", "\u201c", "\u201e", "\u00ab"):
            if f"{self.separator}{sign}" in self.text:
                return f'quotes of cells are ", and not {sign}: '
        return ""

    def _other_separator(self) -> str:
        """Return the keys under which all of the first rows have several cells, if this is none."""
        lines = [line for line in self.text.splitlines()[: 2 * _SHOWN] if line.strip()][:_SHOWN]
        if len(lines) > 2 and {len(line.split()) for line in lines} == {len(lines[0].split())} - {
            1
        }:
            return (
                "columns are separated by blanks; write a sign in their place: "
                f"sed -E 's/^[[:blank:]]+//; s/[[:blank:]]+/{self.separator}/g' {self.path} > "
                "table.csv"
            )
        marked = lines[0].casefold().startswith("sep=") if lines else False
        for one in _SEPARATORS:
            rows = [*csv.reader(lines[marked:], delimiter=one, skipinitialspace=True)]
            counts = {len(row) for row in rows}
            if one == self.separator or len(counts) != 1 or min(counts) < 2:
                continue
            cells = [cell.strip() for row in rows[1:] for cell in row]
            decimal = ", decimal: ','" if any(map(_DECIMAL.fullmatch, cells)) else ""
            first = f" and remove line 1 ({lines[0]})" if marked else ""
            return (
                f"columns are separated by {one!r}, not by {self.separator!r}; give separator: "
                f"{one!r}{decimal}{first}"
            )
        return ""

    def check_header(self, names: Sequence[str]) -> None:
        """Reject a header whose columns are separated by another sign.

        Raises:
            ValueError: It has one name with such a sign.
        """
        if len(names) == 1 and (other := self._other_separator()):
            raise ValueError(f"{self.path}, line 1: {other}")

    def explain(self, error: Exception) -> ValueError:
        """Return the error for a text that pandas refuses, with line and advice."""
        what = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        if what.startswith("EOF inside string"):
            number = self._open_quote()
            return ValueError(
                f"{self.path}, line {number}: a cell begins with a quote that is never closed: "
                "remove the quote or close it"
            )
        if self.places:
            try:
                self.check_widths(self.places[0][1])
            except ValueError as error:
                return error
        return ValueError(f"{self.path}: {what}")

    def _open_quote(self) -> int:
        """Return the line in which a cell begins that is never closed: that of the last row."""
        before = self.places[-2][0] if len(self.places) > 1 else 0
        lines = self.text.splitlines()[before:]
        return before + 1 + next((n for n, line in enumerate(lines) if line.count('"') % 2), 0)

    def counted(self, read: int, width: int) -> Lines:
        """Count the lines, independently of the rows that were read.

        Args:
            read: Number of rows that were read, with the header.
            width: Number of columns.
        """
        text = self.text
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        unfinished = bool(text) and not text.endswith("\n")
        written = text.count("\n") + unfinished
        if written != read:
            written = sum(1 for line in text.split("\n") if line and not line.isspace())
        swallowed = [] if written <= read else [*self._swallowed(width)]
        return Lines(written, read, tuple(swallowed), unfinished)

    def _swallowed(self, width: int) -> Iterator[tuple[int, int, int]]:
        """Yield first and last line of cells in which whole rows stand, and how many."""
        before, kinds = 0, [_is_number(cell) for _, row in self._some() for cell in row[:1]]
        for last, cells in self.rows():
            if last > before + 1:
                inner = max(cells, key=len).replace("\r\n", "\n").replace("\r", "\n").split("\n")
                counts = [line.count(self.separator) for line in inner]
                # Opened and closed in the same column, its ends are a row together.
                rows = [line for line, count in zip(inner[1:-1], counts[1:-1], strict=True)
                        if count == width - 1]  # fmt: skip
                rows += [inner[-1]] if counts[0] + counts[-1] == width - 1 > 1 else []
                alike = [row for row in rows if _is_number(row.split(self.separator)[0]) in kinds]
                if alike and 2 * len(alike) >= len(inner) - 1:
                    yield last - len(inner) + 1, last, len(alike)
            before = last

    def _some(self) -> list[tuple[int, list[str]]]:
        """Return the first rows below the header."""
        return [*islice(self.rows(), 1, 6)]


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def of_arff(path: Path, text: str) -> tuple[list[str], str]:
    """Return the column names, and the text with header and comments blanked.

    Raises:
        ValueError: Rows are sparse, or there is none.
    """
    names: list[str] = []
    lines, data = text.splitlines(), False
    for number, line in enumerate(lines):
        if data and not line.startswith("%"):
            require(
                not line.lstrip().startswith("{"),
                f"{path}, line {number + 1}: rows in braces are sparse: save it in the dense form "
                "(weka.filters.unsupervised.instance.SparseToNonSparse)",
            )
            continue
        lines[number] = ""
        if not data and not line.startswith("%"):
            words = shlex.split(line, comments=False)
            if words and words[0].lower() == "@attribute" and len(words) > 1:
                names.append(words[1])
            data = bool(words) and words[0].lower() == "@data"
    return names, "\n".join(lines)


def text_frame(text: str, separator: str = ",", places: list[int] | None = None) -> pd.DataFrame:
    """Return the cells of a text as read by pandas, all as texts, including the header.

    ``places`` are those of the columns to read, ascending; by default all.
    """
    return pd.read_csv(
        io.StringIO(text),
        header=None,
        sep=separator,
        dtype=object,
        keep_default_na=False,
        skipinitialspace=True,
        usecols=places,
    )
