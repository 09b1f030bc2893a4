"""Tables from files (CSV, ARFF, Parquet, Excel), read by pandas, pyarrow and openpyxl."""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datamodules import formats
from datamodules.checks import MEMORY_LIMIT, existing, optional, require
from datamodules.delimited import Text, of_arff, text_frame
from datamodules.encoding import decode
from datamodules.tables.columns import Spelling
from datamodules.tables.table import Table


def read_table(
    path: str | Path,
    names: Sequence[str] | None = None,
    spelling: Spelling | None = None,
    wanted: Collection[str] | None = None,
) -> Table:
    """Read a file by its content: Parquet, Excel (``*.xlsx``), ARFF if named so, or else CSV.

    Args:
        path: The file.
        names: Names of the columns of a CSV file without a header.
        spelling: Spelling of texts.
        wanted: Names of the columns to read from a CSV file that has more; by default all. Those
            that it lacks are left to who asks for them.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: The file is Parquet or Excel, and the package that reads it is not installed.
        ValueError: The file is neither, or is empty; the message names a bad line.
    """
    file, spelling = existing(path), spelling or Spelling()
    kind = formats.name_of(file)
    if kind == "Parquet" or file.suffix.lower() in (".parquet", ".pq"):
        table = _parquet(file, spelling)
    elif kind == "Excel":
        table = _excel(file, spelling)
    else:
        table = _text(file, names, spelling, wanted)
    empty = "it is empty" if not file.stat().st_size else "it has no line below the header"
    rows = len(table.frame.columns) > 0 and len(table) > 0
    require(rows, f"{file} has no rows: {empty}; export or copy it again")
    return table


def _text(
    path: Path, names: Sequence[str] | None, spelling: Spelling, wanted: Collection[str] | None
) -> Table:
    """Read CSV, with a header or given names, or ARFF, whose header has one line per column."""
    # Decoded here: pandas would unpack archives, and read NUL as the end of a cell.
    content = decode(path)
    if path.name.lower().removesuffix(".gz").endswith(".arff"):
        names, content = of_arff(path, content)
    text = Text(path, content, spelling.separator)
    places = None if names is not None else _wanted_places(text, wanted)
    try:
        frame = text_frame(content, spelling.separator, places)
    except pd.errors.EmptyDataError:
        return Table(path, pd.DataFrame())
    except (pd.errors.ParserError, ValueError) as error:
        raise text.explain(error) from error
    header = names is None
    if names is None:
        names = [str(name).strip() for name in frame.iloc[0]]
        frame = frame.iloc[1:]
        text.check_header(names)
    width = len(names)
    if places is None:
        if frame.shape[1] != width:
            text.check_widths(width)
        # pandas pads short lines.
        if len(frame) and (frame.iloc[:, -1] == "").any():
            text.check_widths(width)
        _check_names(path, names)
    require(frame.shape[1] == width, f"{path}: {frame.shape[1]} values for {width} columns")
    frame.columns = pd.Index([*names])
    lines = text.counted(len(frame) + header, width if places is None else len(text.first() or ()))
    return Table(path, frame, "line", spelling, lambda row: text.line(row + header), lines=lines)


def _wanted_places(text: Text, wanted: Collection[str] | None) -> list[int] | None:
    """Return the places of the wanted columns; ``None`` for all."""
    first = None if wanted is None else text.first()
    if first is None or wanted is None:
        return None
    _check_names(text.path, first)
    # pandas needs as much time for a column as for many of its cells.
    places = [place for place, name in enumerate(first) if name in wanted]
    text.check_widths(len(first))
    return places or None


def _excel(path: Path, spelling: Spelling) -> Table:
    """Read the first sheet of an Excel file, each cell as the text that CSV would have."""
    openpyxl = optional("openpyxl", "excel", f"reading {path}", "; or save it as CSV")
    formats.check_archive(path)
    with formats.reading(path, "is not an Excel file", cure="save it again"):
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheet, *others = book.worksheets
        rows = [[_cell(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
        book.close()
    full = [number for number, row in enumerate(rows) if any(row)]
    require(len(full) > 1, f"{path} has no rows")
    width = max(len(rows[full[0]]), 1)
    while width > 1 and not any(rows[number][width - 1] for number in full):
        width -= 1
    names = [name.strip() for name in rows[full[0]][:width]]
    _check_names(path, names)
    frame = pd.DataFrame([rows[number][:width] for number in full[1:]], columns=names, dtype=object)
    more = ", ".join(repr(one.title) for one in others if one.max_row and one.max_row > 1)
    unread = [f"{path}: only the first sheet is read, and not {more}: remove those, or join them"]
    unread = [*unread[: bool(more)], *_hidden(path)]
    return Table(
        path,
        frame,
        "row",
        spelling,
        lambda row: full[row + 1] + 1,
        unread=unread,
    )


def _hidden(path: Path) -> Iterator[str]:
    """Yield a line for rows that a spreadsheet does not show."""
    with ZipFile(path) as archive:
        first = "xl/worksheets/sheet1.xml"
        text = archive.read(first) if first in archive.namelist() else b""
    if count := len(re.findall(rb"<row [^>]*hidden=\"(?:1|true)\"", text)):
        yield (
            f"{path}: {count} rows are hidden, as by a filter, and are read as all others: show "
            "all, and remove those that are not meant"
        )


def _cell(value: object) -> str:
    """Return a cell of a sheet as the text that CSV would have."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat().removesuffix("T00:00:00")
    return str(value)


def _parquet(path: Path, spelling: Spelling) -> Table:
    parquet = optional("pyarrow.parquet", "parquet", f"reading {path}")
    try:
        file = parquet.ParquetFile(path)
        size = 8 * file.metadata.num_rows * file.metadata.num_columns
        require(size <= MEMORY_LIMIT, f"its {file.metadata.num_rows:,} rows do not fit into memory")
        content = file.read()
    except (ValueError, OSError) as error:
        kind = formats.name_of(path)
        text = f"{error}; if it is text, call it .csv"
        cut = f"it is damaged or cut off ({error}): copy it again"
        what = cut if kind == "Parquet" else text if not kind else formats.advice(kind, path)
        raise ValueError(f"{path} is not a Parquet file: {what}") from error
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
    return Table(path, pd.DataFrame(cells), "row", spelling or Spelling(), refused=refused)


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
    empty = [place for place, name in enumerate(names, 1) if not name.strip()]
    where = f"{path}, line 1: columns {', '.join(map(str, empty[:5]))} have no name"
    last = empty == [*range(len(names) - len(empty) + 1, len(names) + 1)]
    require(
        len(empty) < 2 or not last or 2 * len(empty) > len(names),
        f"{where}; they are the last ones: if they are empty, remove them (cut -d, "
        f"-f-{len(names) - len(empty)} {path} > table.csv)",
    )
    require(
        len(empty) < 2,
        f"{where}; if it is a title, remove it, so that the first line has the names",
    )
    for place, name in enumerate(names, 1):
        of_pandas = "; pandas writes its index like this without index=False" if place == 1 else ""
        require(bool(name.strip()), f"{path}, line 1: column {place} has no name{of_pandas}")
        require(
            counts[name] == 1,
            f"{path}, line 1: two columns are called {name!r}: name them apart, or, if the names "
            "stand in the first column, turn the table round (pandas: read_csv(header=None).T)",
        )
        control = next((one for one in name if unicodedata.category(one) == "Cc"), "")
        how = f": if it separates columns, give separator: {control!r}" if len(names) == 1 else ""
        require(not control, f"{path}: the column name {name!a} has a control character{how}")
