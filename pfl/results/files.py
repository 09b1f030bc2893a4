"""Readers of the files in a run folder: tables of numbers, and JSON of a declared form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pfl.disk import reading
from pfl.disk.form import FormError, formed
from pfl.disk.nearest import hint

Floats: TypeAlias = NDArray[np.float64]

# A folder is not a run, or a run lacks data.
RunError: TypeAlias = reading.FileError
# Of rounds and of clients.
LARGEST = 10**7
# Of all numbers: no float32 is as large, and larger ones cannot be drawn.
WILD = 1e100
# Columns of words: the clients' names, which ``partition.json`` has too, why they failed, and which
# step of the uplink withheld their uploads.
WORDS = ("name", "failed", "withheld")
_TRUTH = {"": "nan", "True": "1", "False": "0"}


def read_cells(path: Path, needed: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file as text, without columns of words and without an incomplete last line.

    A missing file has no rows.

    Args:
        path: The file.
        needed: Columns that it must have.

    Raises:
        RunError: A column is missing; or see :func:`pfl.disk.reading.read_csv`.
    """
    cells = reading.read_csv(path)
    if cells.columns.empty:
        return cells.reindex(columns=[*needed])
    known(needed, cells, path)
    return cells.drop(columns=[name for name in WORDS if name in cells])


def numbers(cells: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return texts as numbers: truth values are 0 and 1, missing and undefined ones NaN.

    Raises:
        RunError: A cell is neither a number nor a truth value, a number is beyond 1e100, or the
            number of a round or a client is missing or not whole.
    """
    try:
        values = cells.replace(_TRUTH).astype(np.float64)
    except ValueError as error:
        raise RunError(f"{path} is not a table of numbers ({error})") from error
    for name in {"round", "client"} & {*values}:
        _check_counted(values[name], f"{path}: {name}")
        values[name] = values[name].astype(np.int64)
    flat = values.to_numpy(np.float64).ravel()
    if len(wild := flat[np.isfinite(flat) & (np.abs(flat) > WILD)]):
        raise RunError(f"{path}: expected numbers up to {WILD:g}, got {wild[0]:g}")
    return values


def read_table(path: Path, needed: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file of numbers; see :func:`read_cells` and :func:`numbers`."""
    return numbers(read_cells(path, needed), path)


def known(wanted: Iterable[str], table: pd.DataFrame, source: Path) -> None:
    """Check that a table has some columns.

    Raises:
        RunError: There is no such column.
    """
    for name in wanted:
        if name not in table:
            near = [str(key) for key in table if "/" in str(key)]
            raise RunError(f"{source} has no column {name!r}{hint(name, near, 3)}")


def _check_counted(values: pd.Series[float], what: str) -> None:
    """Refuse numbers of rounds or clients that are not whole; -1 stands for the server.

    Raises:
        RunError: A number is not whole, or too large.
    """
    wrong = values[~(values.between(-1, LARGEST) & (values == values.round()))]
    if len(wrong):
        raise RunError(
            f"{what} must be a whole number of at most {LARGEST:,}, got {wrong.iloc[0]:g}"
        )


def read_json(path: Path, form: Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object without its null values; a missing file gives an empty one.

    Raises:
        RunError: The file is damaged, or a value does not have its form.
    """
    content = reading.read_json(path)
    check_form(content, form, path)
    return {key: value for key, value in content.items() if value is not None}


def check_form(content: Mapping[str, Any], form: Mapping[str, Any], path: Path) -> None:
    """Check the values of a mapping that a form declares; any may be missing or null.

    See :mod:`pfl.disk.form` for forms.

    Raises:
        RunError: A value does not have its form.
    """
    for key, value_form in form.items():
        if content.get(key) is not None:
            try:
                formed(content[key], value_form, (key,))
            except FormError as error:
                raise RunError(f"{path}: {error}") from error
