"""Rows of a comparison with reported numbers: one for each cell of a table, over its seeds.

They are written to and read from CSV files, so that any collection of results can be stored this
way.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from pfl.disk.writing import csv_text
from pfl.results.statistics import Estimate, agree


@dataclass(frozen=True)
class LedgerRow:
    """One cell of a paper's table.

    Attributes:
        paper: The paper.
        table: Name of the table in the paper.
        cell: Row and column.
        partition: Whose partition it is: ``released`` or ``own``.
        metric: Name of the number in ``summary.json``, which is the paper's criterion.
        seeds: Seeds of the runs, ascending.
        ours: Mean over the seeds by the paper's criterion, as a fraction.
        last: Mean of the last round.
        best: Mean of the best round.
        rounds: Standard deviation of the last eight tests of the second half of the rounds.
        reported: The paper's number; ``None`` if it prints none.
        spread: The number after the paper's ±; ``None`` if it prints none.
        half: Half the 95 % interval of the difference; ``None`` if no spread is known.
        by: Where the interval comes from.
        verdict: ``in`` if the difference is in the interval, ``out`` if not; ``-`` without one.
        verdict_last: The same for the last round.
        verdict_best: The same for the best round.
        reason: What is known of the reason why a cell is out.
        command: The command that shows it.
        partitions: Hashes of the assignment of samples to clients.
        commit: The project's commit that ran it.
        hardware: Processor and cores.
        note: Differences from the paper's set-up.
    """

    paper: str
    table: str
    cell: str
    partition: str
    metric: str
    seeds: str
    ours: float
    last: float
    best: float
    rounds: float
    reported: float | None
    spread: float | None
    half: float | None
    by: str
    verdict: str
    verdict_last: str
    verdict_best: str
    reason: str
    command: str
    partitions: str
    commit: str
    hardware: str
    note: str

    @property
    def difference(self) -> float | None:
        """Ours minus the reported number."""
        return None if self.reported is None else self.ours - self.reported


def verdict(ours: Estimate, theirs: Estimate | None) -> str:
    """Return ``in`` or ``out``; ``-`` if nothing is printed or no spread is known.

    Example:
        >>> from pfl.results.statistics import Spread
        >>> verdict(Estimate.of([0.58]), Estimate(0.60, 5, Spread(0.01, 4)))
        'in'
    """
    inside = agree(ours, theirs)
    return "-" if inside is None else ("in" if inside else "out")


def write(rows: Sequence[LedgerRow]) -> str:
    """Return rows as the text of a CSV file."""
    cells = [{name: _text(value) for name, value in vars(row).items()} for row in rows]
    return csv_text(cells, [item.name for item in fields(LedgerRow)])


def read(path: Path) -> list[LedgerRow]:
    """Read rows from a CSV file.

    Raises:
        ValueError: A column is missing, or a cell is not a number.
    """
    hints = get_type_hints(LedgerRow)
    with path.open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    try:
        return [
            LedgerRow(**{name: _value(r[name], hint) for name, hint in hints.items()})
            for r in records
        ]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a table of compared results: {error}") from error


def _text(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _value(text: str, hint: object) -> Any:  # noqa: ANN401
    if hint is str:
        return text
    return None if text == "" and hint is not float else float(text)
