"""Columns of CSV, ARFF and Parquet files; errors name the file, line and column of a bad value."""

from __future__ import annotations

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.checks import existing, require
from datamodules.targets import Floats, Ints

# Cells as stored in a file: texts, or numbers with NaN for missing ones.
Cells: TypeAlias = list[str] | Floats
# Texts that mark a missing value, in lower case.
MISSING = frozenset({"", "na", "nan", "null", "?"})
# A float represents each smaller whole number exactly.
_EXACT = 2.0**53


class Table:
    """The columns of a file.

    Args:
        path: The file, for error messages.
        columns: (n,) cells of each column, by name.
        lines: (n,) line of each row in the file, or the row's number if the file has no lines.
        unit: ``line`` or ``row``.
    """

    def __init__(self, path: Path, columns: dict[str, Cells], lines: Ints, unit: str) -> None:
        self.path = path
        self.columns = columns
        self.lines = lines
        self.unit = unit
        self._numbers: dict[str, tuple[Floats, Ints]] = {}

    @classmethod
    def of_rows(
        cls,
        path: Path,
        names: Sequence[str],
        rows: Sequence[Sequence[str]],
        unit: str,
        lines: Sequence[int] | None = None,
    ) -> Table:
        """Make a table of rows of texts; without ``lines`` they are numbered from 1."""
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        cells: dict[str, Cells] = {n: [*column] for n, column in zip(names, columns, strict=True)}
        numbers = range(1, len(rows) + 1) if lines is None else lines
        return cls(path, cells, np.array(numbers, np.int64), unit)

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Ints) -> Table:
        """Return some rows."""
        columns = {
            name: [cells[row] for row in rows] if isinstance(cells, list) else cells[rows]
            for name, cells in self.columns.items()
        }
        return Table(self.path, columns, self.lines[rows], self.unit)

    def column(self, name: str) -> Cells:
        """Return the cells of a column.

        Raises:
            ValueError: There is no column of this name.
        """
        if name not in self.columns:
            raise ValueError(f"{self.path} has no column {name!r}, only {', '.join(self.columns)}")
        return self.columns[name]

    def numbers(self, name: str, hint: str = "") -> Floats:
        """Return the (n,) numbers of a column, NaN where one is missing.

        Args:
            name: Name of the column.
            hint: Text added to the error message if a value is not a number.

        Raises:
            ValueError: A value is not a number; the message names file, line and column.
        """
        values, bad = self._parsed(name)
        self.refuse(name, bad, f"is not a finite number{hint}")
        return values

    def labels(self, name: str) -> NDArray[Any]:
        """Return (n,) numbers if all present values are numbers (integers if whole), else texts.

        Texts stay texts if numbers would not keep them apart, such as 007 and 7, or ids of 20
        digits.
        """
        values, bad = self._parsed(name)
        cells = self.column(name)
        if len(bad) or (isinstance(cells, list) and not _apart(cells)):
            return np.array(cells)
        whole = (values == np.round(values)) & (np.abs(values) < _EXACT)
        return values.astype(np.int64) if whole.all() else values

    def holds(self, name: str) -> str:
        """Return ``numbers``, ``words`` or ``both``, the kind of the values that are present."""
        values, bad = self._parsed(name)
        if not len(bad):
            return "numbers"
        return "both" if np.isfinite(values).any() else "words"

    def places(self, name: str, known: Sequence[str]) -> Ints:
        """Return the (n,) place of each value among known ones, and -1 for any other.

        Numbers are compared as numbers if all known values are numbers as :meth:`labels` has them.
        """
        numbers = [_number(value) for value in known]
        if all(map(_is_label, known, numbers)):
            place = {number: n for n, number in enumerate(numbers)}
            return np.array([place.get(v, -1) for v in self._parsed(name)[0].tolist()], np.int64)
        words = {word: n for n, word in enumerate(known)}
        return np.array([words.get(str(cell), -1) for cell in self.column(name)], np.int64)

    def missing(self, name: str) -> NDArray[np.bool_]:
        """Return an (n,) mask of the rows in which a column has no value."""
        cells = self.column(name)
        if isinstance(cells, list):
            return np.array([cell.strip().lower() in MISSING for cell in cells], bool)
        return np.isnan(cells)

    def refuse(self, name: str, rows: Ints, why: str) -> None:
        """Refuse the first of some rows, if there are any.

        Raises:
            ValueError: There is such a row; the message names file, line, column and value.
        """
        if len(rows):
            row = int(rows[0])
            raise ValueError(
                f"{self.path}, {self.unit} {self.lines[row]}, column {name!r}: "
                f"{str(self.columns[name][row])!r} {why}"
            )

    def _parsed(self, name: str) -> tuple[Floats, Ints]:
        """Return the finite numbers of a column, NaN elsewhere, and the rows of other values."""
        if name not in self._numbers:
            cells = self.column(name)
            values = np.array(
                [_number(cell) for cell in cells] if isinstance(cells, list) else cells, np.float64
            )
            values[~np.isfinite(values)] = np.nan
            self._numbers[name] = values, np.flatnonzero(np.isnan(values) & ~self.missing(name))
        return self._numbers[name]


def read_table(path: str | Path, names: Sequence[str] | None = None) -> Table:
    """Read a file: Parquet if it is called ``*.parquet`` or ``*.pq``, ARFF, or CSV.

    ``names`` are those of the columns of a CSV file without a header.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: The file is Parquet, and pyarrow is not installed.
        ValueError: The file is neither, or is empty; the message names a bad line.
    """
    file = existing(path)
    table = _parquet(file) if file.suffix.lower() in (".parquet", ".pq") else _text(file, names)
    require(bool(table.columns) and len(table) > 0, f"{file} has no rows")
    return table


def times(table: Table, name: str) -> Floats:
    """Return the (n,) numbers of a column, or its dates as seconds since 1970.

    Raises:
        ValueError: A value is neither a number nor a date.
    """
    if table.holds(name) == "numbers":
        return table.numbers(name)
    seconds = np.full(len(table), np.nan)
    for row, cell in enumerate(table.column(name)):
        try:
            moment = datetime.fromisoformat(str(cell))
        except ValueError:
            table.refuse(name, np.array([row]), "is neither a number nor a date (2026-03-31)")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        seconds[row] = moment.timestamp()
    return seconds


def _text(path: Path, names: Sequence[str] | None) -> Table:
    """Read CSV, with a header or with given names, or ARFF, whose header has a line a column."""
    rows: list[list[str]] = []
    lines: list[int] = []
    arff = path.suffix.lower() == ".arff"
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=not arff)
        try:
            if names is None:
                names = [name.strip() for name in _names(reader, arff)]
                other = "".join(one for one in ";\t|" if len(names) == 1 and one in names[0])
                require(not other, f"columns must be separated by commas, got {other!r}")
            _check_names(path, names)
            for row in reader:
                if row and not (arff and row[0].startswith("%")):
                    require(len(row) == len(names), f"{len(row)} values for {len(names)} columns")
                    rows.append([cell.strip() for cell in row])
                    lines.append(reader.line_num)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from error
        except (csv.Error, ValueError) as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    return Table.of_rows(path, names, rows, "line", lines)


def _names(rows: Iterator[list[str]], arff: bool) -> list[str]:
    """Return the names of the columns in a header; the rows that follow are the data."""
    if not arff:
        return next(rows, [])
    names: list[str] = []
    for row in rows:
        if row and row[0].startswith("%"):
            continue
        words = shlex.split(",".join(row), comments=False)
        if words and words[0].lower() == "@attribute" and len(words) > 1:
            names.append(words[1])
        if words and words[0].lower() == "@data":
            break
    return names


def _parquet(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"reading {path} needs pyarrow: pip install 'pfl-lightning[parquet]'"
        ) from error
    try:
        content = parquet.read_table(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    _check_names(path, content.column_names)
    return arrow_table(path, content)


def arrow_table(path: Path, content: Any) -> Table:  # noqa: ANN401
    """Convert a pyarrow table into a :class:`Table`; values that are not numbers become texts."""
    pairs = zip(content.column_names, content.columns, strict=True)
    cells = {name: _cells(column) for name, column in pairs}
    return Table(path, cells, np.arange(1, content.num_rows + 1), "row")


def _cells(column: Any) -> Cells:  # noqa: ANN401
    """Return the cells of a pyarrow column."""
    from pyarrow import ArrowInvalid, float64, types

    arrow_type = column.type
    if any(is_of(arrow_type) for is_of in (types.is_integer, types.is_floating, types.is_boolean)):
        try:
            numbers: Floats = column.cast(float64()).to_numpy().astype(np.float64)
            return numbers
        except ArrowInvalid:
            pass  # integers that floats cannot represent, such as hashes: kept distinct as texts
    return ["" if value is None else str(value) for value in column.to_pylist()]


def _check_names(path: Path, names: Sequence[str]) -> None:
    counts = Counter(names)
    for place, name in enumerate(names, 1):
        of_pandas = "; pandas writes its index so, unless told index=False" if place == 1 else ""
        require(bool(name.strip()), f"column {place} of {path} has no name{of_pandas}")
        require(counts[name] == 1, f"two columns of {path} are called {name!r}")


def _apart(cells: Sequence[str]) -> bool:
    """Return whether numbers keep texts apart; 1 and 1.0 need not be, as tables write either."""
    texts = {cell.strip() for cell in cells}
    numbers = {
        re.sub(r"\.0*$", "", text): _number(text) for text in texts if text.lower() not in MISSING
    }
    distinct = set(numbers.values())
    return len(distinct) == len(numbers) and all(abs(number) < _EXACT for number in distinct)


def _is_label(text: str, number: float) -> bool:
    """Return whether a text is what a number in :meth:`Table.labels` is written as."""
    return abs(number) < _EXACT and text in (str(number), str(int(number)))


def _number(cell: str) -> float:
    """Return a number, or NaN if the text is not one."""
    try:
        return float(cell) if "_" not in cell else np.nan
    except ValueError:
        return np.nan
