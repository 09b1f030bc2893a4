"""Readers of the files in a run folder: tables of numbers, YAML, and JSON of a known shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pfl.disk import reading

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

# Of rounds and of clients.
LARGEST = 10**7
# A whole number of a JSON file is no larger.
_LARGEST_NUMBER = 2**63 - 1
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


class RunError(ValueError):
    """A folder is not a run, or a run lacks the data that is needed."""


# The column of clients' names, which is no numbers; ``partition.json`` has them too.
NAME = "name"


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of numbers; a missing cell is NaN. The column of clients' names is left out.

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

        A missing file has no columns; see :func:`read_text`.

        Raises:
            RunError: A cell is neither a number nor a truth value, or the number of a round or a
                client is none; or see :func:`pfl.disk.reading.read_csv`.
        """
        with of_run():
            lines = reading.read_csv(path)
        if NAME in lines.header:
            place = lines.header.index(NAME)
            rows = [[*row[:place], *row[place + 1 :]] for row in lines.rows]
            header = [*lines.header[:place], *lines.header[place + 1 :]]
            lines = replace(lines, header=header, rows=rows)
        try:
            cells = [[_number(cell) for cell in row] for row in lines.rows]
            values = np.array(cells, np.float64).reshape(len(lines.rows), len(lines.header))
        except ValueError as error:
            raise RunError(f"{path} is not a table of numbers ({error})") from error
        columns = dict(zip(lines.header, values.T, strict=True))
        for name in ("round", "client"):
            if name in columns:
                _check_counted(columns[name], f"{path}: {name}")
        flags = np.array([[cell == "nan" for cell in row] for row in lines.rows], np.bool_)
        named = zip(lines.header, flags.reshape(values.shape).T, strict=True)
        undefined = {name: flag for name, flag in named if flag.any()}
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
        found: Flags = ~np.isnan(self[name])
        return found | self.undefined[name] if name in self.undefined else found

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
            near = get_close_matches(name, known, n=3) or known
            raise RunError(f"{self.source} has no column {name!r}; it has {', '.join(near)}")
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


@contextmanager
def of_run() -> Iterator[None]:
    """Turn the error of a file into one of its run."""
    try:
        yield
    except reading.FileError as error:
        raise RunError(str(error)) from error


def read_text(path: Path) -> str:
    """Read a text; a missing file gives an empty one.

    Raises:
        RunError: It is too large, or not UTF-8.
    """
    with of_run():
        return reading.text(path) or ""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; a missing file gives an empty one.

    Raises:
        RunError: The file is damaged, or beyond the limits of a configuration.
    """
    with of_run():
        return reading.read_yaml(path)


def read_json(path: Path, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object without its null values; a missing file gives an empty one.

    Args:
        path: The file.
        shape: See :func:`check_shape`.

    Raises:
        RunError: The file is damaged, or a value is not of its shape.
    """
    with of_run():
        content = reading.read_json(path)
        check_shape(content, shape, path)
    return {key: value for key, value in content.items() if value is not None}


def check_shape(content: Mapping[str, Any], shape: Mapping[str, Any], path: Path) -> None:
    """Check those values of a mapping that a shape names; any may be missing or null.

    Args:
        content: The mapping.
        shape: By keys: a type of plain values; a list of one shape, for a list of such values; a
            dictionary of one shape under ``str``, for any keys; or a dictionary of further keys.
        path: The file, for messages.

    Raises:
        reading.FileError: A value is not of its shape.
    """
    for key, wanted in shape.items():
        if content.get(key) is not None:
            _check_value(content[key], wanted, f"{path}: {key}")


def _check_value(value: Any, shape: Any, where: str) -> None:  # noqa: ANN401
    if isinstance(shape, list):
        _refuse(isinstance(value, list), value, "a list", where)
        for number, item in enumerate(value):
            _check_value(item, shape[0], f"{where}.{number}")
    elif isinstance(shape, Mapping):
        _refuse(isinstance(value, dict), value, "keys and values", where)
        for key, item in value.items():
            if (inner := shape.get(str, shape.get(key))) is not None:
                _check_value(item, inner, f"{where}.{key}")
    else:
        _refuse(_is(value, shape), value, _WORDS[shape], where)


def _is(value: Any, kind: type) -> bool:  # noqa: ANN401
    if kind is float:
        # What was not measured, or had no bounds, is stored as NaN or infinity.
        return _is(value, int) or isinstance(value, float)
    if kind is int:
        return type(value) is int and abs(value) <= _LARGEST_NUMBER
    return isinstance(value, kind)


def _refuse(right: bool, value: Any, wanted: str, where: str) -> None:  # noqa: ANN401
    if not right:
        shown = repr(value) if not isinstance(value, int) else f"{type(value).__name__}"
        raise reading.FileError(f"{where} must be {wanted}, not {shown[:60]}")
