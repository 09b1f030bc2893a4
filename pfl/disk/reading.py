"""Reading files of run folders within limits; errors name the file."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pfl.disk import yaml_text
from pfl.disk.bounds import DEPTH, BoundsError, check_bounds

if TYPE_CHECKING:
    import pandas as pd

# Bytes of a file, characters of a table's cell.
BYTES, CELL = 2**30, 1000
# What spreadsheets interpret as a formula; and text that looks already protected from it.
FORMULA = re.compile(r"'?[=+\-@\t\r]|''")


class FileError(ValueError):
    """A file has the wrong content; the message names the file."""


def text(path: Path) -> str | None:
    """Return the text of a file, or of its compressed form ``<name>.gz``; ``None`` if missing.

    Raises:
        FileError: It is too large, or not UTF-8, or damaged.
        OSError: It cannot be read.
    """
    packed = path.with_name(f"{path.name}.gz")
    if not path.exists() and not packed.exists():
        return None
    try:
        content = _bytes(path if path.exists() else packed)
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = content[error.start]
        raise FileError(f"{path}:{line}: this is not UTF-8 (byte {byte:#04x})") from error
    except MemoryError:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from None


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileError(f"{path} is not a file")
    with path.open("rb") as file:
        if path.suffix != ".gz":
            content = file.read(BYTES + 1)
        else:
            try:
                content = gzip.GzipFile(fileobj=file).read(BYTES + 1)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise FileError(f"{path} is damaged ({error})") from error
    if len(content) > BYTES:
        raise FileError(f"{path} has more than {BYTES:,} bytes, which are not read")
    return content


def mapping_of_yaml(content: str, source: object) -> dict[str, Any]:
    """Return the mapping in a YAML text; an empty text gives an empty one.

    Raises:
        FileError: It is not YAML, too deep, too large or not a mapping; the message names the
            source.
    """
    try:
        parsed = yaml_text.loaded(content)
    except yaml_text.YamlError as error:
        raise FileError(f"{source}:{error.line}: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        # A tag, such as a date that does not exist.
        raise FileError(f"{source} is damaged ({first_line(error)})") from error
    return _mapping({} if parsed is None else parsed, source)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; a missing file gives an empty one.

    Raises:
        FileError: See :func:`mapping_of_yaml` and :func:`text`.
        OSError: It cannot be read.
    """
    return mapping_of_yaml(text(path) or "", path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file gives an empty one.

    Raises:
        FileError: It is not JSON, too deep, too large, or not an object.
        OSError: It cannot be read.
    """
    content = text(path)
    try:
        parsed = {} if content is None else json.loads(content)
        check_bounds(parsed, math.inf)
    except (RecursionError, BoundsError):
        raise FileError(f"{path} has more than {DEPTH} levels") from None
    except ValueError as error:
        raise FileError(f"{path} is damaged ({first_line(error)})") from error
    return _mapping(parsed, path)


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file as text, without an incomplete last line of a killed process.

    A missing file has no columns.

    Raises:
        FileError: It is not CSV, too large, a cell is too long, or a line has other columns.
        OSError: It cannot be read.
    """
    stream = io.StringIO(text(path) or "", newline="")
    whole = (line for line in stream if line.endswith("\n"))
    header, *rows = list(_cells(path, whole)) or [[]]
    if len({*header}) < len(header):
        raise FileError(f"{path}:1: a column is named twice")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise FileError(
                f"{path}:{number}: there are {len(row)} cells for {len(header)} columns"
            )
    import pandas as pd

    return pd.DataFrame(rows, columns=header, dtype=object)


def _cells(path: Path, lines: Iterator[str]) -> Iterator[list[str]]:
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if any(len(cell) > CELL for cell in row):
                what = f"a cell has more than {CELL:,} characters"
                raise FileError(f"{path}:{reader.line_num}: {what}")
            yield [*map(original, row)]
    except csv.Error as error:
        raise FileError(f"{path}:{reader.line_num}: this is not a table ({error})") from error


def original(cell: str) -> str:
    """Return the text of a cell as it was before :func:`pfl.disk.writing.csv_text` protected it."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell, 1) else cell


def _mapping(content: Any, source: object) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise FileError(f"{source} must have keys and values, not a {type(content).__name__}")
    return content


@contextmanager
def naming_damage(path: Path, kind: type[ValueError]) -> Iterator[None]:
    """Turn any error about a file's content into one that names the file.

    Args:
        path: The file.
        kind: The class of the error.

    Raises:
        OSError: The file cannot be read, or not enough memory is free.
        ValueError: Its content is wrong; an error of ``kind``.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if is_memory(error):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error
        what = f"is damaged, or was written by another program ({first_line(error)})"
        raise kind(f"{path} {what}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def is_memory(error: BaseException) -> bool:
    """Return ``True`` if memory is exhausted; on a CPU, torch has no type for it."""
    typed = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return typed or "can't allocate memory" in str(error)
