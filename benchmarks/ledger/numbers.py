"""Numbers of the ledger as its pages have them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.ledger.judge import Record, by
from benchmarks.ledger.readings import TAKEN, Reading


def pct(value: float | None, half: float | None = None) -> str:
    """Return a fraction in per cent, with the number after its ± if there is one."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.2f}" + ("" if pct(half) == "-" else f" ± {pct(half)}")


def signed(value: float, half: float | None = None) -> str:
    """Return a difference in points, with half its interval if that is known."""
    return ("+" if value >= 0 else "") + pct(value, half)


def rms(rows: Sequence[Record], reading: Reading = TAKEN) -> float:
    """Return the root mean square of differences to printed numbers, by a reading."""
    squares = [by(row, reading)["difference"] ** 2 for row in rows]
    return math.sqrt(sum(squares) / len(squares)) if squares else math.nan
