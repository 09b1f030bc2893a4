"""What a paper says about its methods, beside what the runs say: draws, gaps and claims.

Methods that ran on one partition share its luck, so their gaps say more than their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from operator import attrgetter

import numpy as np
from scipy import stats

from pfl.ledger.judge import Background, Scored, column_name, natural, partition_name
from pfl.results.statistics import Deviation, Estimate, half_width


@dataclass(frozen=True)
class RunGroup:
    """Runs of one column of a table on one partition, one for each method.

    Attributes:
        runs: The runs.
        noise: Spread of single runs of each method, by row.
        references: See :class:`~pfl.ledger.judge.Background`.
    """

    runs: Sequence[Scored]
    noise: Mapping[str, Deviation]
    references: Sequence[str] = ()

    @property
    def title(self) -> str:
        """Table, column, whose partition, and seed."""
        entry = self.runs[0].entry
        place = ", ".join(filter(None, [entry.table, column_name(entry)]))
        return f"{entry.paper}, {place}; {partition_name(entry)} partition, seed {entry.seed}"

    @property
    def reference(self) -> Scored:
        """The run to which the others are compared."""
        by_row = {run.entry.row: run for run in self.runs}
        return next((by_row[row] for row in self.references if row in by_row), self.runs[0])

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of our numbers and the printed ones; ``None`` for two methods."""
        if len(self.runs) < 3:
            return None
        pairs = np.array([(run.ours, run.entry.reported) for run in self.runs], np.float64)
        return float(stats.spearmanr(pairs).statistic)

    def half(self, a: Scored, b: Scored) -> float | None:
        """Return half the interval of the gap between two methods; ``None`` if it is unknown."""
        spreads = [self.noise.get(run.entry.row) for run in (a, b)]
        return half_width(*(Estimate(0.0, 1, spread) for spread in spreads))

    def claims(self) -> Counter[str]:
        """Count the pairs by whether the method that is better in the paper is better here too."""
        counts: Counter[str] = Counter()
        for a, b in combinations(self.runs, 2):
            theirs = printed_gap(a, b)
            if theirs == 0:
                continue
            ours, noise = (a.ours - b.ours) * np.sign(theirs), self.half(a, b)
            if noise is None:
                counts["unknown"] += 1
            else:
                counts["within noise" if abs(ours) <= noise else "yes" if ours > 0 else "no"] += 1
        return counts


def printed_gap(a: Scored, b: Scored) -> float:
    """Return the paper's difference of two cells."""
    return round((a.entry.reported or 0.0) - (b.entry.reported or 0.0), 9)


def groups(runs: Iterable[Scored], known: Background) -> list[RunGroup]:
    """Return the columns in which at least two methods ran on one partition."""

    def where(run: Scored) -> list[str]:
        entry = run.entry
        words = (entry.paper, entry.table, column_name(entry), partition_name(entry))
        return natural(*words, entry.partition, str(entry.seed))

    reported = sorted((run for run in runs if run.entry.reported is not None), key=where)
    columns = [list(members) for _, members in groupby(reported, key=where)]
    columns = [members for members in columns if len(members) > 1]
    return [RunGroup(runs, _noise(runs, columns, known), known.references) for runs in columns]


def _noise(
    members: Sequence[Scored], columns: Sequence[Sequence[Scored]], known: Background
) -> dict[str, Deviation]:
    """Return the spread of each method: the printed one, or what is left within all partitions.

    What is left are the differences to the paper without their median in each group. They hold the
    noise of our run and of the paper's, and their spread is taken by median, since a method whose
    rounds differ widely would make that of all.
    """
    paper = members[0].entry.paper
    if members[0].entry.spread is not None:
        spreads = {run.entry.row: known.theirs(run.entry)[0] for run in members}
        return {row: one.spread for row, one in spreads.items() if one and one.spread}
    residuals = []
    for group in columns:
        if group[0].entry.paper == paper:
            apart = np.array([run.ours - (run.entry.reported or 0.0) for run in group])
            residuals.append(apart - np.median(apart))
    df = sum(len(values) - 1 for values in residuals)
    sd = float(stats.median_abs_deviation(np.concatenate(residuals), scale="normal"))
    return {run.entry.row: Deviation(sd, df) for run in members}


@dataclass(frozen=True)
class Draw:
    """All runs on one partition, which are judged together.

    Attributes:
        runs: The runs.
        difference: Median of our numbers minus the printed ones.
        half: Median of half the intervals; ``None`` if no spread is known.
    """

    runs: Sequence[Scored]
    difference: float
    half: float | None

    @property
    def verdict(self) -> str:
        """``in``, ``out`` or ``-``."""
        if self.half is None:
            return "-"
        return "in" if abs(self.difference) <= self.half else "out"


def draws(runs: Iterable[Scored], known: Background) -> list[Draw]:
    """Return the partitions, with all runs on each."""
    reported = sorted(
        (run for run in runs if run.entry.reported is not None), key=attrgetter("draw")
    )
    judged = []
    for _, group in groupby(reported, key=attrgetter("draw")):
        members = list(group)
        theirs = (known.theirs(run.entry)[0] for run in members)
        pairs = zip(members, theirs, strict=True)
        widths = [half_width(Estimate(run.ours, 1, None), estimate) for run, estimate in pairs]
        halves = [width for width in widths if width is not None]
        apart = [run.ours - (run.entry.reported or 0.0) for run in members]
        half = float(np.median(halves)) if halves else None
        judged.append(Draw(members, float(np.median(apart)), half))
    return judged
