"""Readers of the files in a run folder: tables of numbers, YAML and JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


class RunError(ValueError):
    """A folder is not a run, or a run lacks the data that is needed."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of numbers; a missing cell is NaN.

    Attributes:
        columns: (rows,) values of each column.
        source: The file, for error messages.
    """

    columns: Mapping[str, Floats]
    source: str

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a CSV file, without the part of a line that a killed process may have left.

        A missing file has no columns.

        Raises:
            RunError: A cell is neither a number nor a truth value.
        """
        if not path.is_file():
            return cls({}, str(path))
        with path.open(newline="") as file:
            whole = (line for line in file if line.endswith("\n"))
            header, *rows = list(csv.reader(whole)) or [[]]
        try:
            cells = [[_number(cell) for cell in row] for row in rows]
            values = np.array(cells, np.float64).reshape(len(rows), len(header))
        except ValueError as error:
            raise RunError(f"{path} is not a table of numbers ({error})") from error
        return cls(dict(zip(header, values.T, strict=True)), str(path))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def up_to(self, number: int) -> Table:
        """Return the rows of the rounds up to one."""
        if len(self) == 0:
            return self
        kept = self["round"] <= number
        return replace(self, columns={name: values[kept] for name, values in self.columns.items()})

    def rows(self) -> Iterator[dict[str, float]]:
        """Yield each row without its missing cells."""
        for row in zip(*self.columns.values(), strict=True):
            pairs = zip(self.columns, map(float, row), strict=True)
            yield {name: value for name, value in pairs if not math.isnan(value)}

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


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; a missing file gives an empty one.

    Raises:
        RunError: The file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file gives an empty one.

    Raises:
        RunError: The file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from error
