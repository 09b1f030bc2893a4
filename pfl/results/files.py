"""Readers of the files in a run folder: tables of numbers, and JSON in a form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pfl.disk import reading
from pfl.disk.form import FormError, formed
from pfl.disk.nearest import hint

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

# A folder is not a run, or a run lacks the data that is needed.
RunError: TypeAlias = reading.FileError
# Of rounds and of clients.
LARGEST = 10**7
# Of all numbers: no float32 is as large, and pictures of larger ones cannot be drawn.
WILD = 1e100
# Columns of words: the clients' names, which ``partition.json`` has too, and why they failed.
WORDS = ("name", "failed")


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of numbers; a missing cell is NaN. Columns of words are left out.

    Attributes:
        columns: (rows,) values of each column.
        source: The file, for error messages.
        undefined: (rows,) whether a cell says NaN, and is not missing, of columns with such a cell.
    """

    columns: Mapping[str, Floats]
    source: str
    undefined: Mapping[str, Flags] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Columns:
        """Read a CSV file, without the part of a line that a killed process may have left.

        A missing file has no columns.

        Raises:
            RunError: A cell is neither a number nor a truth value, a number is beyond 1e100,
                or that of a round or a client is none; or see :func:`pfl.disk.reading.read_csv`.
        """
        lines = reading.read_csv(path)
        columns, undefined = dict[str, Floats](), dict[str, Flags]()
        for name, *cells in zip(lines.header, *lines.rows, strict=True):
            if name in WORDS:
                continue
            try:
                values = np.array([_number(cell) for cell in cells], np.float64)
            except ValueError as error:
                raise RunError(f"{path} is not a table of numbers ({error})") from error
            if name in ("round", "client"):
                _check_counted(values, f"{path}: {name}")
            if (wild := np.isfinite(values) & (np.abs(values) > WILD)).any():
                raise RunError(f"{path}: expected numbers up to {WILD:g}, got {values[wild][0]:g}")
            columns[name] = values
            if "nan" in cells:
                undefined[name] = np.array([cell == "nan" for cell in cells])
        return cls(columns, str(path), undefined)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def up_to(self, number: int) -> Columns:
        """Return the rows of the rounds up to one."""
        if len(self) == 0:
            return self
        kept = self["round"] <= number
        columns = {name: values[kept] for name, values in self.columns.items()}
        undefined = {name: flags[kept] for name, flags in self.undefined.items()}
        return replace(self, columns=columns, undefined=undefined)

    def filled(self, name: str) -> Flags:
        """Return (rows,) whether a cell of a column is there; it may say NaN.

        Raises:
            RunError: There is no such column.
        """
        present: Flags = ~np.isnan(self[name])
        return present | self.undefined[name] if name in self.undefined else present

    def rows(self) -> Iterator[dict[str, float]]:
        """Yield each row without its missing cells."""
        filled = [self.filled(name) for name in self.columns]
        for number, row in enumerate(zip(*self.columns.values(), strict=True)):
            cells = zip(self.columns, map(float, row), filled, strict=True)
            yield {name: value for name, value, flags in cells if flags[number]}

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Floats:
        """Return a column.

        Raises:
            RunError: There is no such column.
        """
        if name not in self.columns:
            known = [key for key in self.columns if "/" in key]
            raise RunError(f"{self.source} has no column {name!r}{hint(name, known, 3)}")
        return self.columns[name]


def _number(cell: str) -> float:
    if cell in ("", "True", "False"):
        return float("nan") if cell == "" else float(cell == "True")
    return float(cell)


def _check_counted(values: Floats, what: str) -> None:
    """Refuse numbers of rounds or clients that are not whole; -1 stands for the server.

    Raises:
        RunError: A number is not whole, or too large.
    """
    wrong = values[~((values >= -1) & (values <= LARGEST) & (values == np.round(values)))]
    if len(wrong):
        raise RunError(f"{what} must be a whole number of at most {LARGEST:,}, got {wrong[0]:g}")


def read_json(path: Path, form: Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object without its null values; a missing file gives an empty one.

    Raises:
        RunError: The file is damaged, or a value does not have its form.
    """
    content = reading.read_json(path)
    check_form(content, form, path)
    return {key: value for key, value in content.items() if value is not None}


def check_form(content: Mapping[str, Any], form: Mapping[str, Any], path: Path) -> None:
    """Check those values of a mapping that a form names; any may be missing or null.

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
