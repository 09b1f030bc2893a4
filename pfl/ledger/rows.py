"""Rows of a comparison with reported numbers: one for each cell of a table, over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfl.disk.rows import hashed, write_rows
from pfl.results.statistics import Estimate, agree, in_or_out

KIND = "ledger"


@dataclass(frozen=True)
class LedgerRow:
    """One cell of a paper's table.

    Attributes:
        paper: The paper.
        table: Name of the table in the paper.
        cell: Row and column.
        partition: Whose partition it is: ``released`` or ``own``.
        metric: Name of the number in ``summary.json``, which is the paper's criterion.
        ours: Mean over the seeds by the paper's criterion, as a fraction.
        last: Mean of the last round.
        best: Mean of the best round; ``None`` if only some clients were tested before the last.
        rounds: Standard deviation of up to the last eight tests in the second half of the rounds;
            ``None`` as for ``best``.
        reported: The paper's number; ``None`` if it prints none.
        spread: The number after the paper's ±; ``None`` if it prints none.
        half: Half the 95 % interval of the difference; ``None`` if no spread is known.
        by: Where the interval comes from.
        verdict: ``in`` if the difference is in the interval, ``out`` if not; ``-`` without one.
        verdict_last: The same for the last round.
        verdict_best: The same for the best round.
        reason: What is known of the reason why a cell is out.
        command: The command that shows it.
        commit: The project's commit that ran it.
        hardware: Processor and cores.
        note: Differences from the paper's set-up that could not be helped.
        departure: Settings other than the table's; such a row has no verdict.
        runs: The runs by ascending seed, in the form of rows (:mod:`pfl.disk.rows`).
    """

    paper: str
    table: str
    cell: str
    partition: str
    metric: str
    ours: float
    last: float
    best: float | None
    rounds: float | None
    reported: float | None
    spread: float | None
    half: float | None
    by: str
    verdict: str
    verdict_last: str
    verdict_best: str
    reason: str
    command: str
    commit: str
    hardware: str
    note: str
    departure: str
    runs: Sequence[Mapping[str, Any]]

    @property
    def seeds(self) -> str:
        """Seeds of the runs, ascending."""
        return " ".join(str(run["seed"]) for run in self.runs)

    @property
    def difference(self) -> float | None:
        """Ours minus the reported number."""
        return None if self.reported is None else self.ours - self.reported


def verdict(ours: Estimate | None, theirs: Estimate | None) -> str:
    """Return ``in`` or ``out``; ``-`` without a number or a spread.

    Example:
        >>> from pfl.results.statistics import Deviation
        >>> verdict(Estimate.of([0.58]), Estimate(0.60, 5, Deviation(0.01, 4)))
        'in'
    """
    return in_or_out(agree(ours, theirs))


def write(rows: Sequence[LedgerRow], file: Path) -> None:
    """Write rows, numbers with six digits: the same on every processor.

    Raises:
        OSError: The file cannot be written.
    """
    hashed_rows = [hashed(_rounded(asdict(row))) for row in rows]
    write_rows(file, KIND, {"name": KIND}, hashed_rows)


def _rounded(content: Any) -> Any:  # noqa: ANN401
    if isinstance(content, dict):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content
