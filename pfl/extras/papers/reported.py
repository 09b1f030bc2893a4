"""Numbers that papers report, from ``reported.csv`` beside this file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pfl.results.statistics import Deviation, Estimate

# Columns that identify a number; the others are its value.
KEYS = (
    *("paper", "table", "dataset", "partition", "param", "clients", "participation"),
    *("local_epochs", "model", "method"),
)
# Factor of a paper's printed accuracies.
_FACTORS = {"accuracy_pct": 100, "accuracy_frac": 1}


@dataclass(frozen=True, order=True)
class NumberFormat:
    """Format of printed numbers: a factor and a number of decimals."""

    factor: int = 100
    digits: int = 2


@dataclass(frozen=True)
class Reported:
    """A paper's number.

    Attributes:
        paper: The paper.
        value: Number as a fraction.
        error: Number after the paper's ± as a fraction; ``None`` if there is none.
        unit: Format in the paper.
    """

    paper: str
    value: float
    error: float | None
    unit: NumberFormat


def printed(paper: str, value: float, error: float | None, kind: str = "") -> Estimate:
    """Return a paper's number as a mean of runs, or as a single run if that is unknown.

    A printed error of 0 is read as half a unit of its last digit.

    Args:
        paper: The paper.
        value: Its number.
        error: The number after its ±.
        kind: What that is, ``standard error`` or ``standard deviation``; as in ``means.csv`` if
            empty.
    """
    means = _means().get(paper)
    count = 1 if means is None else int(means["runs"])
    if means is None or error is None:
        return Estimate(value, count, None)
    error = error or float(means["half_unit"])
    deviation = error * (count**0.5 if (kind or means["spread"]) == "standard error" else 1)
    return Estimate(value, count, Deviation(deviation, count - 1))


def find(wanted: Mapping[str, str]) -> Reported:
    """Return the one number that matches a selection.

    ``wanted`` maps some of :data:`KEYS` to cells; numbers are compared by value.

    Raises:
        LookupError: No number matches, or several do.
    """
    rows = [row for row in _rows() if all(_same(row[key], cell) for key, cell in wanted.items())]
    selection = ", ".join(f"{key}={cell or 'none'}" for key, cell in wanted.items())
    if not rows:
        raise LookupError(f"no number is reported for {selection}")
    if len(rows) > 1:
        apart = [key for key in KEYS if len({row[key] for row in rows}) > 1]
        raise LookupError(
            f"{len(rows)} numbers are reported for {selection}; they differ in {', '.join(apart)}"
        )
    row = rows[0]
    unit = NumberFormat(_FACTORS[row["metric"]], len(row["value"].partition(".")[2]))
    error = float(row["spread"]) / unit.factor if row["spread"] else None
    return Reported(row["paper"], float(row["value"]) / unit.factor, error, unit)


@cache
def _rows(name: str = "reported.csv") -> list[dict[str, str]]:
    file = resources.files("pfl.extras.papers") / name
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def _means() -> dict[str, dict[str, str]]:
    """Return the number of runs behind each paper's means, and the meaning of its ±.

    ``half_unit`` is half a unit of the last digit after the ±, as a fraction.
    FedSimSup and UniVarFL do not define their ±, nor FedSimSup its number of runs; the file has the
    narrower reading.
    """
    return {row["paper"]: row for row in _rows("means.csv")}


def _same(cell: str, wanted: str) -> bool:
    if cell == wanted:
        return True
    try:
        return float(cell) == float(wanted)
    except ValueError:
        return False
