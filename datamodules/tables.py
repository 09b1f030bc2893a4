"""Tables that pandas reads: CSV, ARFF and Parquet; errors name file, line and column of a value."""

from __future__ import annotations

import csv
import io
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datamodules.checks import MEMORY_LIMIT, existing, require
from datamodules.dates import dates_of
from datamodules.targets import Floats, Ints, plain_name

# pandas' texts for a missing value without "None", which is a word in many tables; and "?".
MISSING = (
    *("", "NA", "N/A", "NaN", "-NaN", "null", "<NA>", "?", "#N/A", "#N/A N/A", "#NA"),
    *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
_USUAL = frozenset(word.lower() for word in MISSING)
Kind: TypeAlias = Literal["numbers", "dates", "words", "both"]
# A float represents each smaller whole number exactly.
_EXACT = 2.0**53
# Dates in other forms than ISO 8601, and times of a day.
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[.,]?"
_DATE = re.compile(
    rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}.*|\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?: ?[ap]m)?"
    rf"|(?:\d{{1,2}}[-. ]+)?{_MONTH}[- ]+(?:\d{{1,2}},?[- ]+)?\d{{2,4}}",
    re.IGNORECASE,
)
# Numbers with separators of groups or another decimal sign; and these with a currency or a percent.
_DIGITS = r"[-+]?(?:\d+|\d{1,3}(?:[.,'\u2019\s]\d{2,3})+)(?:[.,]\d+)?"
_NUMBER = re.compile(_DIGITS)
_AMOUNT = re.compile(rf"\(?[-+]?(?:[$€£¥]|[A-Z]{{3}})?\s*{_DIGITS}\s*(?:[$€£¥%‰]|[A-Z]{{3}})?\)?")


@dataclass(frozen=True)
class Spelling:
    """How the cells of a table are spelt, as pandas' ``read_csv`` has it.

    Attributes:
        missing_values: Texts or numbers that mark a missing value, in place of the usual ones; an
            empty cell always does.
        date_format: The form of dates in Python's codes, such as ``%d.%m.%Y``; without it dates are
            ISO 8601, or whole numbers such as 20260331.
        decimal: The decimal sign.
        thousands: The sign between groups of three digits.
        separator: The sign between the columns of a text file.

    Raises:
        ValueError: A sign is not a single character, or two are the same.
    """

    missing_values: Sequence[str | float] | None = None
    date_format: str | None = None
    decimal: str = "."
    thousands: str | None = None
    separator: str = ","

    def __post_init__(self) -> None:
        signs = {name: getattr(self, name) for name in ("decimal", "thousands", "separator")}
        for name, sign in signs.items():
            require(sign is None or len(sign) == 1, f"{name} must be one character, got {sign!r}")
        require(self.decimal != self.thousands, f"decimal and thousands are both {self.decimal!r}")

    @cached_property
    def _missing(self) -> tuple[frozenset[str], frozenset[float]]:
        given = self.missing_values or ()
        words = frozenset(str(value).strip() for value in given)
        numbers = frozenset(map(self.number, map(str, given)))
        return words | {""}, frozenset(value for value in numbers if np.isfinite(value))

    @cached_property
    def _grouped(self) -> re.Pattern[str]:
        group, point = re.escape(self.thousands or ""), re.escape(self.decimal)
        return re.compile(rf"[-+]?\d{{1,3}}(?:{group}\d{{3}})+(?:{point}\d*)?")

    def is_missing(self, text: str) -> bool:
        """Return whether a text marks a missing value."""
        if self.missing_values is None:
            return text.lower() in _USUAL
        return text in self._missing[0] or self.number(text) in self._missing[1]

    def number(self, text: str) -> float:
        """Return a number, or NaN if the text is not a finite one."""
        if self.thousands is not None and self.thousands in text:
            if not self._grouped.fullmatch(text):
                return np.nan
            text = text.replace(self.thousands, "")
        if self.decimal != ".":
            if "." in text:
                return np.nan
            text = text.replace(self.decimal, ".")
        try:
            value = float(text) if "_" not in text else np.nan
        except ValueError:
            return np.nan
        return value if np.isfinite(value) else np.nan


class Column:
    """The cells of a column, and what they are.

    Args:
        values: (n,) texts, or float64 with NaN for missing values.
        spelling: How the texts are spelt.

    Attributes:
        texts: (U,) different texts of the cells, without blanks around them, in Unicode's form NFC.
        codes: (n,) the text of each cell.
        missing: (n,) mask of the rows without a value.
        numbers: (n,) finite numbers, NaN elsewhere.
    """

    def __init__(self, values: NDArray[Any], spelling: Spelling) -> None:
        self.spelling = spelling
        # Numbers of a binary file are spelt as Python spells them.
        self.written = values.dtype != np.float64
        if self.written:
            place: dict[str, int] = {}
            self.codes: Ints = np.array([place.setdefault(v, len(place)) for v in values.tolist()])
            self.texts = [plain_name(str(text)) for text in place]
        else:
            found, self.codes = np.unique(values, return_inverse=True)
            self.texts = ["" if np.isnan(v) else _spelt(v) for v in found.tolist()]
        missing = [spelling.is_missing(text) for text in self.texts]
        self.missing: NDArray[np.bool_] = np.array(missing, bool)[self.codes]
        if self.written:
            values = np.array([*map(spelling.number, self.texts)], np.float64)[self.codes]
        self.numbers: Floats = np.where(np.isfinite(values) & ~self.missing, values, np.nan)

    @property
    def bad(self) -> Ints:
        """The rows whose value is not a finite number."""
        return np.flatnonzero(np.isnan(self.numbers) & ~self.missing)

    @cached_property
    def present(self) -> dict[str, int]:
        """The different texts that are present, and how often each is."""
        return self._counts(~self.missing)

    @cached_property
    def kind(self) -> Kind:
        """Return what the present values are; ``both`` is numbers and others."""
        if not len(self.bad):
            return "numbers"
        if self.seconds is not None:
            return "dates"
        return "both" if np.isfinite(self.numbers).any() else "words"

    @cached_property
    def seconds(self) -> Floats | None:
        """(n,) seconds since 1970 of dates, NaN where one is missing; ``None`` if they are none."""
        texts = [*self.present]
        found = dates_of(texts, self.spelling.date_format) if texts else None
        if found is None:
            return None
        by_text = dict(zip(texts, found.tolist(), strict=True))
        seconds = np.array([by_text.get(text, np.nan) for text in self.texts])[self.codes]
        return np.where(self.missing, np.nan, seconds)

    def labels(self) -> NDArray[Any]:
        """Return (n,) numbers if all present values are numbers (integers if whole), else texts.

        Texts stay texts if numbers would not keep them apart, such as 007 and 7, or ids of 20
        digits.
        """
        if len(self.bad) or (self.written and not self._apart()):
            return np.array(self.texts)[self.codes]
        values = self.numbers
        whole = (values == np.round(values)) & (np.abs(values) < _EXACT)
        return values.astype(np.int64) if whole.all() else values

    def values(self) -> list[str]:
        """Return the different values that are present, in the order of numbers or letters."""
        if len(self.bad):
            return sorted(self.present)
        return [str(value) for value in np.unique(self.labels()[~self.missing])]

    def places(self, known: Sequence[str]) -> Ints:
        """Return the (n,) place of each value among known ones, and -1 for any other.

        Numbers are compared as numbers if all known values are numbers as :meth:`labels` has them.
        """
        numbers = [Spelling().number(value) for value in known]
        if all(map(_is_label, known, numbers)):
            place = {number: n for n, number in enumerate(numbers)}
            return np.array([place.get(v, -1) for v in self.numbers.tolist()], np.int64)
        words = {word: n for n, word in enumerate(known)}
        found: Ints = np.array([words.get(text, -1) for text in self.texts], np.int64)[self.codes]
        return found

    def missing_texts(self) -> dict[str, int]:
        """Return how often each spelling of a missing value occurs."""
        return self._counts(self.missing)

    def advice(self) -> str:
        """Return advice on words that are all dates or amounts; an empty text if they are not."""
        words = [text for text in self.present if np.isnan(self.spelling.number(text))]
        if words and (self.kind == "dates" or all(map(_DATE.fullmatch, words))):
            return f"holds dates, such as {words[0]!r}, which are no numbers"
        if words and all(map(_NUMBER.fullmatch, words)):
            return (
                f"holds numbers in another form, such as {words[0]!r}: give decimal or thousands "
                "(decimal: ',' reads 1,037 as a little more than one; thousands: ',' as more than "
                "a thousand)"
            )
        if words and all(map(_AMOUNT.fullmatch, words)):
            return f"holds amounts, such as {words[0]!r}: write plain numbers, without a unit"
        return ""

    def _counts(self, rows: NDArray[np.bool_]) -> dict[str, int]:
        counts = np.bincount(self.codes[rows], minlength=len(self.texts)).tolist()
        found: Counter[str] = Counter()
        for text, count in zip(self.texts, counts, strict=True):
            found[text] += count
        return {text: count for text, count in found.items() if count}

    def _apart(self) -> bool:
        """Return whether numbers keep texts apart; 1 and 1.0 need not be, as tables write both."""
        numbers = {re.sub(r"\.0*$", "", text): self.spelling.number(text) for text in self.present}
        distinct = set(numbers.values())
        return len(distinct) == len(numbers) and all(abs(number) < _EXACT for number in distinct)


class Table:
    """A table as pandas has read it, with the place of each row for error messages.

    Args:
        path: The file, for error messages.
        frame: A column of texts, or of float64 with NaN for missing values, for each name.
        unit: What a row is called: ``line`` or ``row``.
        spelling: How texts are spelt.
        line: Returns the line of a row of the file; without it rows are numbered from 1.
        refused: Why a column cannot be used, by name.
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
        self._refused = refused or {}
        # Columns by name, in order; each is looked at on first use.
        self.columns: Mapping[str, int] = {str(n): place for place, n in enumerate(frame.columns)}
        self._rows = np.arange(len(frame))
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def _cells(self) -> Sequence[NDArray[Any]]:
        """The (n,) cells of each column; one conversion, as a table may have many columns."""
        if all(map(pd.api.types.is_object_dtype, self.frame.dtypes)):
            return [*self.frame.to_numpy(object).T]
        return [cells.to_numpy() for _, cells in self.frame.items()]

    def take(self, rows: Ints) -> Table:
        """Return some rows."""
        part = Table(self.path, self.frame.iloc[rows], self.unit, self.spelling, self.line)
        part._rows, part._refused = self._rows[rows], self._refused
        return part

    def column(self, name: str) -> Column:
        """Return a column.

        Raises:
            ValueError: There is no column of this name, or its cells are lists or records.
        """
        if name not in self._columns:
            if name not in self.columns:
                known = ", ".join(self.columns)
                raise ValueError(f"{self.path} has no column {name!r}, only {known}")
            require(self.usable(name), f"{self.path}: {name!r} {self._refused.get(name)}")
            self._columns[name] = Column(self._cells[self.columns[name]], self.spelling)
        return self._columns[name]

    def numbers(self, name: str, hint: str = "") -> Floats:
        """Return the (n,) numbers of a column, NaN where one is missing.

        Args:
            name: Name of the column.
            hint: Text added to the error message if a value is not a number.

        Raises:
            ValueError: A value is not a number; the message names file, line and column.
        """
        column = self.column(name)
        advice = f"; the column {column.advice()}" if len(column.bad) and column.advice() else ""
        self.refuse(name, column.bad, f"is not a finite number{advice}{hint}")
        return column.numbers

    def labels(self, name: str) -> NDArray[Any]:
        """Return :meth:`Column.labels` of a column."""
        return self.column(name).labels()

    def usable(self, name: str) -> bool:
        """Return whether the cells of a column are single values."""
        return name not in self._refused

    def holds(self, name: str) -> Kind:
        """Return the kind of the values that are present."""
        return self.column(name).kind

    def missing(self, name: str) -> NDArray[np.bool_]:
        """Return an (n,) mask of the rows in which a column has no value."""
        return self.column(name).missing

    def times(self, name: str) -> tuple[Floats, str]:
        """Return the (n,) numbers or dates of a column, and which they are.

        Dates are in seconds since 1970.

        Raises:
            ValueError: A value is neither a number nor a date.
        """
        column, form = self.column(name), self.spelling.date_format
        if column.seconds is not None:
            return column.seconds, "dates"
        if form is None and column.kind == "numbers":
            return column.numbers, "numbers"
        why = f"is no date of the form {form}"
        if form is None:
            why = "is neither a number nor a date (2026-03-31); date_format gives another form"
        for text in column.present:
            if dates_of([text], form) is None and (form or np.isnan(self.spelling.number(text))):
                rows = np.array([cell == text for cell in column.texts])[column.codes]
                self.refuse(name, np.flatnonzero(rows & ~column.missing), why)
        raise ValueError(f"{self.path}: {name!r} holds both numbers and dates")

    def refuse(self, name: str, rows: Ints, why: str) -> None:
        """Refuse the first of some rows, if there are any.

        Raises:
            ValueError: There is such a row; the message names file, line, column and value.
        """
        if len(rows):
            row = int(rows[0])
            raise ValueError(
                f"{self.path}, {self.unit} {self.line(int(self._rows[row]))}, column {name!r}: "
                f"{str(self.frame[name].iloc[row])[:200]!r} {why}"
            )


def read_table(
    path: str | Path, names: Sequence[str] | None = None, spelling: Spelling | None = None
) -> Table:
    """Read a file: Parquet if it is called ``*.parquet`` or ``*.pq``, ARFF, or CSV.

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
    """Read CSV, with a header or with given names, or ARFF, whose header has a line a column."""
    require(path.stat().st_size <= MEMORY_LIMIT, f"{path} does not fit into memory")
    # Decoded here: pandas would unpack an archive, and take a NUL for the end of a cell.
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    require("\0" not in text, f"{path} is not text: it holds a NUL character")
    if path.suffix.lower() == ".arff":
        names, text = _of_arff(text)
    try:
        frame = text_frame(text, spelling.separator)
    except pd.errors.EmptyDataError:
        return Table(path, pd.DataFrame(columns=[*(names or ())]))
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
    count = frame.shape[1]
    require(count == len(names), f"{path}: {count} values for {len(names)} columns")
    if len(frame) and (frame.iloc[:, -1] == "").any():
        # pandas fills short lines.
        for line, cells in _lines(text, spelling.separator):
            require(
                cells == len(names), f"{path}, line {line}: {cells} values for {len(names)} columns"
            )
    frame.columns = pd.Index([*names])
    place = partial(_line_of, text, spelling.separator, int(header))
    return Table(path, frame, "line", spelling, place)


def text_frame(text: str, separator: str = ",") -> pd.DataFrame:
    """Return the cells of a text as pandas reads them, all as texts; a header is a row."""
    return pd.read_csv(
        io.StringIO(text),
        header=None,
        sep=separator,
        dtype=object,
        keep_default_na=False,
        skipinitialspace=True,
    )


def _lines(text: str, separator: str) -> Iterator[tuple[int, int]]:
    """Yield the last line of each row that is not blank, and its number of cells."""
    limit = csv.field_size_limit(len(text) + 1)
    try:
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True
        )
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield reader.line_num, len(row)
    finally:
        csv.field_size_limit(limit)


def _line_of(text: str, separator: str, header: int, row: int) -> int:
    """Return the line of a row."""
    for number, (line, _) in enumerate(_lines(text, separator)):
        if number == row + header:
            return line
    return row + header + 1


def _of_arff(text: str) -> tuple[list[str], str]:
    """Return the names of the columns, and the text with blank lines for header and comments."""
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

    The index that pandas stores without a name is left out.
    """
    from pyarrow import types

    refused: dict[str, str] = {}
    cells: dict[str, NDArray[Any]] = {}
    for name, column in zip(content.column_names, content.columns, strict=True):
        if types.is_nested(column.type) or types.is_binary(column.type):
            refused[name] = f"holds {column.type} in each row, and not a single value"
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
            pass  # integers that floats cannot represent, such as hashes: kept distinct as texts
    return np.array(["" if value is None else str(value) for value in column.to_pylist()], object)


def _check_names(path: Path, names: Sequence[str]) -> None:
    counts = Counter(names)
    for place, name in enumerate(names, 1):
        of_pandas = "; pandas writes its index so, unless told index=False" if place == 1 else ""
        require(bool(name.strip()), f"{path}, line 1: column {place} has no name{of_pandas}")
        require(counts[name] == 1, f"{path}, line 1: two columns are called {name!r}")
        control = any(unicodedata.category(letter) == "Cc" for letter in name)
        require(not control, f"{path}: the column name {name!a} holds a control character")


def _spelt(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < _EXACT else str(number)


def _is_label(text: str, number: float) -> bool:
    """Return whether a text is what a number in :meth:`Column.labels` is written as."""
    return abs(number) < _EXACT and text in (str(number), str(int(number)))
