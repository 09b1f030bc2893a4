"""What a paper says about its methods, beside what the runs say: draws, gaps and claims.

Methods that ran on one partition share its luck, so their gaps say more than their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np
from scipy import stats

from pfl.ledger.judge import (
    Background,
    Scored,
    cell_name,
    column_name,
    mean,
    natural,
    partition_name,
)
from pfl.results.statistics import Deviation, Estimate, agree, half_width, in_or_out, is_within


@dataclass(frozen=True)
class RunGroup:
    """Runs of one column of a table on one partition, one for each method.

    Attributes:
        runs: The runs.
        known: What is known beside them.
    """

    runs: Sequence[Scored]
    known: Background

    @property
    def title(self) -> str:
        """Table, column, whose partition, seed and departure."""
        entry = self.runs[0].entry
        place = ", ".join(filter(None, [entry.table, column_name(entry)]))
        words = [f"{partition_name(entry)} partition", f"seed {entry.seed}", entry.departure]
        return f"{entry.paper}, {place}; {', '.join(filter(None, words))}"

    @property
    def reference(self) -> Scored:
        """The run to which the others are compared."""
        by_row = {run.entry.row: run for run in self.runs}
        return next((by_row[row] for row in self.known.references if row in by_row), self.runs[0])

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of our numbers and the printed ones; ``None`` for two methods."""
        if len(self.runs) < 3:
            return None
        pairs = np.array([(run.ours, run.entry.reported) for run in self.runs], np.float64)
        return float(stats.spearmanr(pairs).statistic)

    def half(self, a: Scored, b: Scored) -> float | None:
        """Return half the interval of the gap between two methods; ``None`` if it is unknown.

        It is what runs of a method differ by gives. Rounds that differ by more widen it, and never
        narrow it, as their more degrees of freedom could.
        """
        between = _half(self._noise(a), self._noise(b))
        of_rounds = _half(self._noise_of_rounds(a), self._noise_of_rounds(b))
        return None if between is None or of_rounds is None else max(between, of_rounds)

    def _noise(self, run: Scored) -> Deviation | None:
        """Return what runs differ by: as printed, or as seeds do."""
        if run.entry.spread is None:
            return self.known.seeds.get(run.entry.paper)
        estimate, _ = self.known.theirs(run.entry)
        return None if estimate is None else estimate.spread

    def _noise_of_rounds(self, run: Scored) -> Deviation | None:
        """Return the same, or what its rounds differ by if that is more and none is printed."""
        noise = self._noise(run)
        if noise is None or run.rounds is None or run.entry.spread is not None:
            return noise
        return max(noise, run.rounds)

    def is_claimed(self, a: Scored, b: Scored) -> bool:
        """Return whether the paper's gap of two methods is outside the interval that it prints."""
        gap = printed_gap(a, b)
        if a.entry.spread is None or b.entry.spread is None:
            return gap != 0
        return not agree(self.known.theirs(a.entry)[0], self.known.theirs(b.entry)[0])

    def claims(self) -> Counter[str]:
        """Count what the paper claims of pairs by whether the better method is better here too."""
        counts: Counter[str] = Counter()
        for a, b in combinations(self.runs, 2):
            if not self.is_claimed(a, b):
                continue
            ours, noise = (a.ours - b.ours) * np.sign(printed_gap(a, b)), self.half(a, b)
            if noise is None:
                counts["open"] += 1
            else:
                counts["within noise" if abs(ours) <= noise else "yes" if ours > 0 else "no"] += 1
        return counts


def _half(first: Deviation | None, second: Deviation | None) -> float | None:
    """Return half the interval of a gap of single runs with these spreads, if both are known."""
    if first is None or second is None:
        return None
    # One spread of both is as sure as it is, not as if it had been measured twice.
    theirs = Estimate(0.0, 1, None if second is first else second)
    return half_width(Estimate(0.0, 1, first), theirs)


def printed_gap(a: Scored, b: Scored) -> float:
    """Return the paper's difference of two cells."""
    return round((a.entry.reported or 0.0) - (b.entry.reported or 0.0), 9)


def groups(runs: Iterable[Scored], known: Background) -> list[RunGroup]:
    """Return the columns in which at least two methods ran on one partition with one departure."""

    def where(run: Scored) -> list[str]:
        entry = run.entry
        words = (entry.paper, entry.table, column_name(entry), partition_name(entry))
        return natural(*words, entry.partition, str(entry.seed), entry.departure)

    reported = sorted((run for run in runs if run.entry.reported is not None), key=where)
    columns = [list(members) for _, members in groupby(reported, key=where)]
    return [RunGroup(members, known) for members in columns if len(members) > 1]


@dataclass(frozen=True)
class Draw:
    """All runs on one partition, which are judged together.

    Attributes:
        runs: The runs.
        difference: Median over its cells of our numbers minus the printed ones.
        half: Median of half their intervals; ``None`` if no spread is known.
    """

    runs: Sequence[Scored]
    difference: float
    half: float | None

    @property
    def column(self) -> tuple[str, str, str]:
        """Paper, table and column of the first run; draws of one are held to the same numbers."""
        entry = self.runs[0].entry
        return entry.paper, entry.table, column_name(entry)

    @property
    def verdict(self) -> str:
        """``in``, ``out`` or ``-``."""
        return in_or_out(is_within(self.difference, self.half))


def draws(runs: Iterable[Scored], known: Background) -> list[Draw]:
    """Return the partitions, with all runs on each."""
    partitions: dict[tuple[str, str], list[Scored]] = {}
    for run in sorted(runs, key=lambda run: natural(*_place(run))):
        if run.entry.reported is not None:
            partitions.setdefault((run.entry.paper, run.entry.partition), []).append(run)
    judged = []
    for members in partitions.values():
        apart, halves = [], []
        for _, cell in groupby(members, key=_place):
            same = list(cell)
            theirs, _ = known.theirs(same[0].entry)
            ours = mean(same[0].entry, [run.ours for run in same])
            apart.append(ours.mean - (same[0].entry.reported or 0.0))
            halves.append(half_width(ours, theirs))
        known_halves = [half for half in halves if half is not None]
        half = float(np.median(known_halves)) if known_halves else None
        judged.append(Draw(members, float(np.median(apart)), half))
    return judged


def _place(run: Scored) -> tuple[str, str, str, str]:
    """Return what sorts runs by column, then by cell."""
    entry = run.entry
    return entry.paper, entry.table, column_name(entry), cell_name(entry)
