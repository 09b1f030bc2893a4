"""Tables read by pandas (CSV, ARFF and Parquet), with errors that name file, line and column."""

from __future__ import annotations

import csv
import io
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datamodules.checks import MEMORY_LIMIT, existing, require
from datamodules.columns import Column, Spelling
from datamodules.dates import dates_of
from datamodules.targets import Floats, Ints


class Table:
    """A table read by pandas, with the line of each row for error messages.

    ``table[name]`` is a :class:`Column`.

    Args:
        path: The file, for error messages.
        frame: Columns of texts, or of float64 with NaN for missing values.
        unit: Name of a row in messages: ``line`` or ``row``.
        spelling: Spelling of texts.
        line: Function from a row to its line in the file; by default rows are numbered from 1.
        refused: Reasons why columns cannot be used, by name.

    Attributes:
        columns: The names of the columns, in order.
    """

    def __init__(
        self,
        path: Path,
        frame: pd.DataFrame,
        unit: str = "row",
        spelling: Spelling | None = None,
        line: Callable[[int], int] | None = None,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.frame = frame.reset_index(drop=True)
        self.unit = unit
        self.spelling = spelling or Spelling()
        self.line = line or (lambda row: row + 1)
        self.refused = refused or {}
        self.columns = [str(name) for name in frame.columns]
        self._rows = np.arange(len(frame))
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            if name not in self.frame.columns:
                raise ValueError(
                    f"{self.path} has no column {name!r}, only {', '.join(self.columns)}"
                )
            require(name not in self.refused, f"{self.path}: {name!r} {self.refused.get(name)}")
            self._columns[name] = Column(self.frame[name].to_numpy(), self.spelling)
        return self._columns[name]

    def take(self, rows: Ints) -> Table:
        """Select rows."""
        frame = self.frame.iloc[rows]
        part = Table(self.path, frame, self.unit, self.spelling, self.line, self.refused)
        part._rows = self._rows[rows]
        return part

    def numbers(self, name: str, hint: str = "") -> Floats:
        """Return the (n,) numbers of a column, NaN if missing.

        Args:
            name: Name of the column.
            hint: Text added to the error message if a value is not a number.

        Raises:
            ValueError: A value is not a number; the message names file, line and column.
        """
        column = self[name]
        advice = f"; the column {column.advice()}" if len(column.bad) and column.advice() else ""
        self.refuse(name, column.bad, f"is not a finite number{advice}{hint}")
        return column.numbers

    def times(self, name: str) -> tuple[Floats, str]:
        """Return the (n,) numbers or dates of a column, and their kind.

        Dates are in seconds since 1970.

        Raises:
            ValueError: A value is neither a number nor a date.
        """
        column, form = self[name], self.spelling.date_format
        if column.seconds is not None:
            return column.seconds, "dates"
        if form is None and column.kind == "numbers":
            return column.numbers, "numbers"
        why = f"is not a date in the format {form}"
        if form is None:
            why = "is neither a number nor a date (2026-03-31); date_format sets another format"
        for text in column.present:
            if dates_of([text], form) is None and (form or np.isnan(self.spelling.number(text))):
                rows = np.array([cell == text for cell in column.texts])[column.codes]
                self.refuse(name, np.flatnonzero(rows & ~column.missing), why)
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
                f"{self.path}, {self.unit} {self.line(int(self._rows[row]))}, column {name!r}: "
                f"{str(self.frame[name].iloc[row])[:200]!r} {why}"
            )

    def refuse_missing(self, name: str, advice: str = "") -> None:
        """Raise an error about the first missing value of a column.

        Raises:
            ValueError: A value is missing.
        """
        self.refuse(name, np.flatnonzero(self[name].missing), f"is a missing value{advice}")


def read_table(
    path: str | Path, names: Sequence[str] | None = None, spelling: Spelling | None = None
) -> Table:
    """Read a file: Parquet if named ``*.parquet`` or ``*.pq``, ARFF, or CSV.

    ``names`` are those of the columns of a CSV file without a header.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: The file is Parquet, and pyarrow is not installed.
        ValueError: The file is neither, or is empty; the message names a bad line.
    """
    file, spelling = existing(path), spelling or Spelling()
    parquet = file.suffix.lower() in (".parquet", ".pq")
    table = _parquet(file, spelling) if parquet else _text(file, names, spelling)
    require(len(table.frame.columns) > 0 and len(table) > 0, f"{file} has no rows")
    return table


def _text(path: Path, names: Sequence[str] | None, spelling: Spelling) -> Table:
    """Read CSV, with a header or given names, or ARFF, whose header has one line per column."""
    require(path.stat().st_size <= MEMORY_LIMIT, f"{path} does not fit into memory")
    # Decoded here: pandas would unpack archives, and read NUL as the end of a cell.
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    require("\0" not in text, f"{path} is not text: it has a NUL character")
    if path.suffix.lower() == ".arff":
        names, text = _of_arff(text)
    try:
        frame = text_frame(text, spelling.separator)
    except pd.errors.EmptyDataError:
        return Table(path, pd.DataFrame())
    except (pd.errors.ParserError, ValueError) as error:
        what = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise ValueError(f"{path}: {what}") from error
    header = names is None
    if names is None:
        names = [str(name).strip() for name in frame.iloc[0]]
        frame = frame.iloc[1:]
        other = "".join(one for one in ";\t|," if len(names) == 1 and one in names[0])
        given = repr(spelling.separator)
        require(not other, f"{path}, line 1: columns are separated by {other!r}, not by {given}; "
            f"give separator: {other!r}")  # fmt: skip
    _check_names(path, names)
    count, right = frame.shape[1], len(names)
    require(count == right, f"{path}: {count} values for {right} columns")
    if len(frame) and (frame.iloc[:, -1] == "").any():
        # pandas pads short lines.
        for place, cells in _lines(text, spelling.separator):
            require(cells == right, f"{path}, line {place}: {cells} values for {right} columns")
    frame.columns = pd.Index([*names])

    def line(row: int) -> int:
        lines, place = _lines(text, spelling.separator), row + header
        return lines[place][0] if place < len(lines) else place + 1

    return Table(path, frame, "line", spelling, line)


def text_frame(text: str, separator: str = ",") -> pd.DataFrame:
    """Return the cells of a text as read by pandas, all as texts, including the header."""
    return pd.read_csv(
        io.StringIO(text),
        header=None,
        sep=separator,
        dtype=object,
        keep_default_na=False,
        skipinitialspace=True,
    )


def _lines(text: str, separator: str) -> list[tuple[int, int]]:
    """Return the last line of each row that is not blank, and its number of cells."""
    limit = csv.field_size_limit(len(text) + 1)
    lines = io.StringIO(text, newline="")
    try:
        reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
        return [(reader.line_num, len(row)) for row in reader if "".join(row).strip() or row[1:]]
    finally:
        csv.field_size_limit(limit)


def _of_arff(text: str) -> tuple[list[str], str]:
    """Return the column names, and the text with header and comments blanked."""
    names: list[str] = []
    lines, data = text.splitlines(), False
    for number, line in enumerate(lines):
        if data and not line.startswith("%"):
            continue
        lines[number] = ""
        if not data and not line.startswith("%"):
            words = shlex.split(line, comments=False)
            if words and words[0].lower() == "@attribute" and len(words) > 1:
                names.append(words[1])
            data = bool(words) and words[0].lower() == "@data"
    return names, "\n".join(lines)


def _parquet(path: Path, spelling: Spelling) -> Table:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"reading {path} needs pyarrow: pip install 'pfl-lightning[parquet]'"
        ) from error
    try:
        file = parquet.ParquetFile(path)
        size = 8 * file.metadata.num_rows * file.metadata.num_columns
        require(size <= MEMORY_LIMIT, f"its {file.metadata.num_rows:,} rows do not fit into memory")
        content = file.read()
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    _check_names(path, content.column_names)
    return arrow_table(path, content, spelling)


def arrow_table(path: Path, content: Any, spelling: Spelling | None = None) -> Table:  # noqa: ANN401
    """Convert a pyarrow table into a :class:`Table`; values that are not numbers become texts.

    An unnamed index stored by pandas is left out.
    """
    from pyarrow import types

    refused: dict[str, str] = {}
    cells: dict[str, NDArray[Any]] = {}
    for name, column in zip(content.column_names, content.columns, strict=True):
        if types.is_nested(column.type) or types.is_binary(column.type):
            refused[name] = f"has {column.type} in each row instead of a single value"
            cells[name] = np.full(content.num_rows, "", object)
        elif not re.fullmatch(r"__index_level_\d+__", name):
            cells[name] = _cells(column)
    return Table(path, pd.DataFrame(cells), "row", spelling, refused=refused)


def _cells(column: Any) -> NDArray[Any]:  # noqa: ANN401
    """Return the cells of a pyarrow column: float64, or texts."""
    from pyarrow import ArrowInvalid, float64, types

    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    if any(is_of(column.type) for is_of in kinds):
        try:
            return np.array(column.cast(float64()).to_numpy(), np.float64)
        except ArrowInvalid:
            pass  # integers beyond the precision of floats, such as hashes, stay distinct as texts
    return np.array(["" if value is None else str(value) for value in column.to_pylist()], object)


def _check_names(path: Path, names: Sequence[str]) -> None:
    counts = Counter(names)
    for place, name in enumerate(names, 1):
        of_pandas = "; pandas writes its index like this without index=False" if place == 1 else ""
        require(bool(name.strip()), f"{path}, line 1: column {place} has no name{of_pandas}")
        require(counts[name] == 1, f"{path}, line 1: two columns are called {name!r}")
        control = any(unicodedata.category(letter) == "Cc" for letter in name)
        require(not control, f"{path}: the column name {name!a} has a control character")
