"""From the runs of the ledger to its rows: each cell's numbers, its interval and its verdict."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pfl.ledger.cells import Entry
from pfl.ledger.rows import LedgerRow, verdict
from pfl.results.files import RunError
from pfl.results.runs import RunFolder
from pfl.results.statistics import Deviation, Estimate, half_width
from pfl.tables.reported import printed

# Tests at the end of a run whose spread is shown.
TESTS = 8
Key = tuple[str, str, str, str]
_KEY = ("paper", "table", "cell", "partition")


@dataclass(frozen=True)
class Scored:
    """The numbers of one run.

    Attributes:
        entry: Its cell.
        ours: By the paper's criterion.
        last: After the last round.
        best: After the best round; ``None`` if only some clients were tested before the last.
        rounds: Standard deviation of up to the last eight tests in the second half of the rounds;
            ``None`` as for ``best``.
        as_row: The run in the form of rows (:mod:`pfl.disk.rows`).
    """

    entry: Entry
    ours: float
    last: float
    best: float | None
    rounds: Deviation | None
    as_row: Mapping[str, Any]

    @classmethod
    def of(cls, entry: Entry, run: RunFolder) -> Scored:
        """Take the numbers from a run.

        Raises:
            RunError: The run lacks the metric.
        """
        metric = entry.metric.rpartition("/")[0]
        tested = run.evaluated(metric)
        values = run.values(metric, tested)
        late = values[tested > tested[-1] / 2][-TESTS:]
        more = next(iter(run.scores.values()))
        whole = "evaluated_clients" not in run.environment or metric.startswith("test/pooled/")
        return cls(
            entry,
            ours=float(run.summary["summary"][entry.metric]),
            last=float(values[-1]),
            # As for the summary, a round without a number is none of the best.
            best=float(np.nanmax(values) if more else np.nanmin(values)) if whole else None,
            rounds=Estimate.of(late).spread if whole else None,
            as_row=_as_row(entry, run),
        )


@dataclass(frozen=True)
class Background:
    """What is known beside the runs.

    Attributes:
        reasons: Reason and command of cells that are out, by paper, table, cell and whose
            partition.
        spreads: What single runs of other partitions differ by where a paper prints no spread, by
            paper, table and column.
        references: Rows to which the others of a column are compared: the first that it has.
        seeds: What runs of other seeds on one partition differ by, by paper.
    """

    reasons: Mapping[Key, tuple[str, str]]
    spreads: Mapping[tuple[str, str, str], Deviation]
    references: Sequence[str] = ()
    seeds: Mapping[str, Deviation] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, runs: Iterable[Scored]) -> Background:
        """Read ``reasons.csv``, ``spreads.csv`` and ``references.csv``, which may be missing.

        Args:
            folder: The folder with these files.
            runs: Runs of tables' cells, from which the spreads between seeds are taken.

        Raises:
            RunError: One of them lacks a column, or a spread is no positive number.
        """
        spreads = folder / "spreads.csv"
        return cls(
            {
                (r["paper"], r["table"], r["cell"], r["partition"]): (r["reason"], r["command"])
                for r in _records(folder / "reasons.csv", *_KEY, "reason", "command")
            },
            {
                (r["paper"], r["table"], r["column"]): _deviation(spreads, r)
                for r in _records(spreads, "paper", "table", "column", "sd", "df")
            },
            [r["row"] for r in _records(folder / "references.csv", "row")],
            between_seeds(runs),
        )

    def theirs(self, entry: Entry) -> tuple[Estimate | None, str]:
        """Return a paper's number with the spread of its runs, and where that is from."""
        if entry.reported is None:
            return None, "no number is printed"
        estimate = printed(entry.paper, entry.reported, entry.spread)
        if estimate.spread is not None:
            return estimate, f"printed, {estimate.count} runs"
        if entry.released:
            spread, between = self.seeds.get(entry.paper), "seeds"
        else:
            place = (entry.paper, entry.table, column_name(entry))
            spread, between = self.spreads.get(place), "partitions"
        if spread is None:
            return estimate, "no spread is known"
        return replace(estimate, spread=spread), f"between {between}"


def mean(entry: Entry, scores: Sequence[float]) -> Estimate:
    """Return the mean of a cell's runs, with their spread only beside a printed one.

    A spread that was measured is that of both sides.
    """
    estimate = Estimate.of(scores)
    return replace(estimate, spread=None) if entry.spread is None else estimate


def between_seeds(runs: Iterable[Scored]) -> dict[str, Deviation]:
    """Return what runs of other seeds on one partition differ by, pooled over a paper's cells."""

    def where(run: Scored) -> list[str]:
        return [run.entry.paper, run.entry.table, cell_name(run.entry), run.entry.partition]

    squares: dict[str, list[tuple[float, int]]] = {}
    for (paper, *_), members in groupby(sorted(runs, key=where), key=where):
        values = np.array([run.ours for run in members])
        if len(values) > 1:
            apart = float(((values - values.mean()) ** 2).sum())
            squares.setdefault(paper, []).append((apart, len(values) - 1))
    return {
        paper: Deviation((sum(apart for apart, _ in found) / df) ** 0.5, df)
        for paper, found in squares.items()
        for df in [sum(free for _, free in found)]
    }


def _as_row(entry: Entry, run: RunFolder) -> dict[str, Any]:
    """Return a run in the form of rows."""
    packages = run.environment.get("packages", {})
    scores: dict[str, dict[str, float]] = {"last": {}, "best_on_test": {}}
    for name, value in run.summary["summary"].items():
        metric, _, at = name.rpartition("/")
        if at in scores:
            scores[at][metric.removeprefix("test/").removeprefix("personal/")] = value
    return {
        "seed": entry.seed,
        "partition": entry.partition,
        "fingerprint": run.summary.get("fingerprint"),
        "environment": {
            "processor": entry.hardware.partition(",")[0],
            **{name: packages.get(name) for name in ("torch", "numpy")},
        },
        **scores,
    }


def _records(file: Path, *columns: str) -> list[dict[str, str]]:
    """Read a table that people write, if there is one.

    Raises:
        RunError: It lacks a column, or a line has more or fewer cells.
    """
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        records = list(reader)
    for column in columns:
        if column not in (reader.fieldnames or ()):
            raise RunError(f"{file} has no column {column!r}: it needs {', '.join(columns)}")
    for number, record in enumerate(records, 1):
        if None in record or None in record.values():
            raise RunError(f"{file}: record {number} has other cells than there are columns")
    return records


def _deviation(file: Path, record: Mapping[str, str]) -> Deviation:
    try:
        sd, df = float(record["sd"]), float(record["df"])
    except ValueError:
        sd = df = np.nan
    if not (0 < sd < np.inf and 0 < df < np.inf):
        given = f"{record['sd']!r} and {record['df']!r}"
        raise RunError(f"{file}: sd and df must be positive numbers, got {given}")
    return Deviation(sd, df)


def column_name(entry: Entry) -> str:
    """Return a cell's column, such as ``beta 0.1, P 0.2``."""
    return ", ".join(f"{axis} {label}" for axis, label in entry.column.items())


def cell_name(entry: Entry) -> str:
    """Return a cell's row and column, such as ``FedAS, beta 0.1, P 0.2``."""
    return ", ".join(filter(None, [entry.row, column_name(entry)]))


def partition_name(entry: Entry) -> str:
    """Return whose partition a cell's runs have."""
    return "released" if entry.released else "own"


def natural(*texts: str) -> list[str]:
    """Return a sort key by which "J 50" comes before "J 100"."""
    return [re.sub(r"(?<![\d.])\d+", lambda number: number[0].zfill(9), text) for text in texts]


def rows(runs: Iterable[Scored], known: Background) -> list[LedgerRow]:
    """Return one row for each cell, kind of partition and departure, over its seeds."""

    def where(run: Scored) -> list[str]:
        entry = run.entry
        place = (entry.paper, entry.table, cell_name(entry), partition_name(entry))
        return natural(*place, entry.departure)

    return [
        _row(sorted(members, key=lambda run: run.entry.seed), known)
        for _, members in groupby(sorted(runs, key=where), key=where)
    ]


def _row(members: Sequence[Scored], known: Background) -> LedgerRow:
    entries = [run.entry for run in members]
    first = entries[0]
    theirs, by = known.theirs(first)
    ours, last = (mean(first, [getattr(run, at) for run in members]) for at in ("ours", "last"))
    bests = [run.best for run in members if run.best is not None]
    best = mean(first, bests) if len(bests) == len(members) else None
    rounds = [run.rounds.sd for run in members if run.rounds is not None]

    def judge(score: Estimate | None) -> str:
        return "-" if first.departure else verdict(score, theirs)

    judged = judge(ours)
    place = (first.paper, first.table, cell_name(first), partition_name(first))
    reason, command = known.reasons.get(place, ("unexplained", ""))
    return LedgerRow(
        paper=first.paper,
        table=first.table,
        cell=place[2],
        partition=place[3],
        metric=_once(entry.metric for entry in entries),
        ours=ours.mean,
        last=last.mean,
        best=None if best is None else best.mean,
        rounds=float(np.mean(rounds)) if rounds else None,
        reported=first.reported,
        spread=first.spread,
        half=half_width(ours, theirs),
        by=by,
        verdict=judged,
        verdict_last=judge(last),
        verdict_best=judge(best),
        reason=reason if judged == "out" else "",
        command=command if judged == "out" else "",
        commit=_once((entry.commit for entry in entries), ", "),
        hardware=_once((entry.hardware for entry in entries), "; "),
        note=_once((entry.note for entry in entries), "; "),
        departure=first.departure,
        runs=[run.as_row for run in members],
    )


def _once(words: Iterable[str], joint: str = " ") -> str:
    return joint.join(dict.fromkeys(filter(None, words)))
