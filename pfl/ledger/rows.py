"""Rows of a comparison with reported numbers: one for each cell of a table, over its seeds.

They are written to and read from CSV files, so that any collection of results can be stored this
way.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
# A single seed has no interval; within this distance of the paper's number it is "near".
NEAR = 0.02
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Row:
    """One cell of a paper's table.

    Attributes:
        paper: The paper.
        table: Name of the table in the paper.
        cell: Row and column.
        seeds: Seeds of the runs, ascending.
        ours: Mean over the seeds, as a fraction.
        error: Standard error of the mean; ``None`` for one seed.
        low: Lower end of Student's 95 % interval of the mean; ``None`` for one seed.
        high: Upper end of the interval; ``None`` for one seed.
        reported: The paper's number; ``None`` if it prints none.
        spread: The number after the paper's ±; ``None`` if it prints none.
        verdict: ``in``, ``near`` or ``out``; ``-`` without a reported number.
        by: The criterion of the verdict.
        reason: Why a cell is out, if known.
        partitions: Hashes of the assignment of samples to clients.
        commit: The project's commit that ran it.
        hardware: Processor and cores.
        note: Differences from the paper's set-up.
    """

    paper: str
    table: str
    cell: str
    seeds: str
    ours: float
    error: float | None
    low: float | None
    high: float | None
    reported: float | None
    spread: float | None
    verdict: str
    by: str
    reason: str
    partitions: str
    commit: str
    hardware: str
    note: str

    @property
    def difference(self) -> float | None:
        """Ours minus the reported number."""
        return None if self.reported is None else self.ours - self.reported


def interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Return a mean's standard error and Student's interval; ``None`` for a single value."""
    if len(values) < 2:
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return error, mean - half, mean + half


def verdict(
    values: Sequence[float], reported: float | None, spread: float | None
) -> tuple[str, str]:
    """Compare our values with a paper's number; return the verdict and its criterion.

    Several seeds are judged by their own interval. A single seed is judged by the spread that the
    paper prints or, if it prints none, by a distance of two points.

    Args:
        values: One value for each seed.
        reported: The paper's number; ``None`` if it prints none.
        spread: The number after the paper's ±; ``None`` if it prints none.

    Example:
        >>> verdict([0.88], 0.8992, None)
        ('near', 'within 2 points')
    """
    if reported is None:
        return "-", "no number is printed"
    if (own := interval(values)) is not None:
        inside = own[1] <= reported <= own[2]
        return ("in" if inside else "out"), f"interval of {len(values)} seeds"
    # Rounded: 0.81 is within 0.80 ± 0.01.
    apart = round(abs(values[0] - reported), 6)
    if spread is not None:
        return ("in" if apart <= spread else "out"), "the paper's spread"
    return ("near" if apart <= NEAR else "out"), "within 2 points"


def write(rows: Sequence[Row]) -> str:
    """Return rows as the text of a CSV file."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [item.name for item in fields(Row)]
    writer.writerow(names)
    for row in rows:
        writer.writerow([_text(getattr(row, name)) for name in names])
    return stream.getvalue()


def read(path: Path) -> list[Row]:
    """Read rows from a CSV file.

    Raises:
        ValueError: A column is missing, or a cell is not a number.
    """
    hints = get_type_hints(Row)
    with path.open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    try:
        return [
            Row(**{name: _value(r[name], kind) for name, kind in hints.items()}) for r in records
        ]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a table of compared results: {error}") from error


def _text(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _value(text: str, kind: object) -> Any:  # noqa: ANN401
    if kind is str:
        return text
    return None if text == "" and kind is not float else float(text)
