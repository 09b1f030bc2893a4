"""From the runs of the ledger to verdicts on cells and on the papers' claims, by each reading."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import ne
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from pydantic import TypeAdapter

from benchmarks.ledger.readings import TAKEN, Assumption, Paper, Reading, is_open, readings
from benchmarks.ledger.runs import read, table
from pfl.disk.reading import read_yaml
from pfl.extras.papers.agreement import half, half_width, pooled, verdict
from pfl.extras.papers.reported import printed
from pfl.results.statistics import Deviation, Estimate

HERE = Path(__file__).parent
Record: TypeAlias = dict[str, Any]
# What makes a cell, and methods alike; a cell's runs in words.
CELL = ["paper", "table", "column", "row", "whose", "experiment"]
ALIKE = ["paper", "like", "pooled", "whose", "partition", "seed", "setting"]
TOLD = ("commit", "hardware", "note")
VERDICTS = ("equal", "different", "undecided")


@dataclass(frozen=True, eq=False)
class Ledger:
    """Runs, and what is said of them.

    Attributes:
        found: The runs, see :func:`benchmarks.ledger.runs.read`.
        reasons: ``reason`` and ``command`` by paper, table, row, column and whose partition.
    """

    found: pd.DataFrame
    reasons: Mapping[Hashable, tuple[str, str]]

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """Read a folder.

        Raises:
            FileError: One of its runs or tables is damaged.
        """
        where = ["paper", "table", "cell", "partition"]
        reasons = table(folder / "reasons.csv", *where, "reason", "command").set_index(where)
        known = {key: (row["reason"], row["command"]) for key, row in reasons.iterrows()}
        return cls(read(folder), known)

    @cached_property
    def papers(self) -> dict[str, Paper]:
        """The papers, by name."""
        known = TypeAdapter(dict[str, Paper]).validate_python(read_yaml(HERE / "papers.yaml"))
        return defaultdict(Paper, known)

    def assumed(self, run: Record) -> dict[str, Assumption]:
        """Return what a cell takes where its paper may be silent, by field."""
        return self.papers[run["paper"]].assumptions(run["row"], run["column"])

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs, and what else is known of them.

        A run with other settings has the ``setting`` of a reading, or is an ``experiment``.
        """
        records: list[Record] = []
        for found in self.found.to_dict("records"):
            run = {str(key): value for key, value in found.items()}
            paper = self.papers[run["paper"]]
            run["column"], other = paper.setting(run["column"], run["departure"])
            fits = is_open(other, self.assumed(run))
            run |= {"setting": other if fits else "", "experiment": "" if fits else other}
            run |= {"whose": "released" if run["released"] else "own"}
            run |= {"own": run["row"] in paper.own}
            run |= {"pooled": run["metric"].startswith("test/pooled/")}
            place = f"{run['table']}, {run['column']}"
            records.append({**run, "like": paper.same_column.get(place, place)})
        return pd.DataFrame(records)

    @cached_property
    def cells(self) -> dict[tuple[Hashable, ...], pd.DataFrame]:
        """The runs of each cell, of all settings."""
        return {(*key,): cell for key, cell in self.runs.groupby(CELL, sort=False)}

    @cached_property
    def methods(self) -> dict[tuple[Hashable, ...], list[pd.DataFrame]]:
        """The cells of each method of a paper, by kind of partition."""
        found = defaultdict(list)
        for place, cell in self.cells.items():
            found[(place[0], *place[3:])].append(cell)
        return found

    def spreads(self, cell: pd.DataFrame, reading: Reading) -> list[Deviation]:
        """Return what is known of how runs of a cell spread.

        It is what the paper prints and what our runs of the cell have; if it prints nothing, what
        our runs have in each cell of the method, on partitions of the same kind. A last round after
        drawn cohorts, if it is of one run, has at least the noise of rounds: the run's swing.
        """
        first = _record(cell)
        stated = _printed(first, reading).spread
        if stated is not None:
            values = _values(cell, reading)
            if len(values) == 1 and not first["released"] and _is_last(first, reading):
                swing = float(cell.loc[cell["setting"] == reading.setting, "swing"].mean())
                stated = stated._replace(sd=max(stated.sd, swing))  # which may be NaN
            return [stated, *_spread(values)]
        alike = self.methods[tuple(first[name] for name in ("paper", *CELL[3:]))]
        return [spread for other in alike for spread in _spread(_values(other, reading))]

    def judge(self, cell: pd.DataFrame, reading: Reading) -> Record | None:
        """Judge a cell by a reading; ``None`` if no run allows it."""
        values, first = _values(cell, reading), _record(cell)
        if not values:
            return None
        ours, theirs = math.fsum(values) / len(values), _printed(first, reading)
        width = half_width(self.spreads(cell, reading), len(values), theirs.count)
        difference = ours - theirs.mean
        return {
            **{"reading": reading, "ours": ours, "difference": difference},
            **{"half": width, "verdict": verdict(difference, width)},
        }

    @cached_property
    def rows(self) -> list[Record]:
        """A record for each cell and kind of partition, over its seeds; see the page's columns.

        ``half`` is half the 95 % interval of the difference. A cell with an ``experiment`` has
        other settings than any reading and is not judged.
        """
        return [self._row(cell) for cell in self.cells.values()]

    def _row(self, cell: pd.DataFrame) -> Record:
        first = _record(cell)
        assumed = self.assumed(first)
        found = [
            judged
            for reading in readings(assumed, cell["setting"].unique())
            if (judged := self.judge(cell, reading))
        ]
        taken = {**found[0], **({"verdict": ""} if first["experiment"] else {})}
        setting = taken["reading"].setting
        name = ", ".join(filter(None, [first["row"], first["column"]]))
        place = (first["paper"], first["table"], name, first["whose"])
        told = self.reasons.get(place, ("", "")) if taken["verdict"] == "different" else ("", "")
        runs = cell[cell["setting"] == setting]
        return {
            **{key: first[key] for key in ("paper", "table", "row", "own", "metric", "experiment")},
            **{"cell": name, "partition": first["whose"], "setting": setting},
            **{key: first[key] for key in ("reported", "spread")},
            **{key: taken[key] for key in ("ours", "difference", "half", "verdict")},
            "assumed": {field: one.model_dump() for field, one in assumed.items()},
            **{"swing": float(runs["swing"].mean()), "noise": self._noise(runs)},
            "readings": [] if first["experiment"] else found,
            **{key: "; ".join(filter(None, runs[key].unique())) for key in TOLD},
            **{"reason": told[0], "command": told[1]},
            "runs": cell[["seed", "setting", "folder"]].to_dict("records"),
        }

    def _noise(self, cell: pd.DataFrame) -> str:
        """Return what a cell's interval is made of, in words."""
        reading = Reading(setting=_record(cell)["setting"])
        stated = _printed(_record(cell), reading).spread is not None
        seeds = len(_values(cell, reading)) > 1
        if stated or seeds:
            return " and ".join(["the printed ±"] * stated + ["its seeds"] * seeds)
        return "seeds of its other cells" if self.spreads(cell, reading) else ""

    @cached_property
    def judged(self) -> list[Record]:
        """The rows of the papers' cells that have a printed number."""
        known = (row for row in self.rows if not row["experiment"])
        return [row for row in known if not math.isnan(row["reported"])]

    @cached_property
    def folders(self) -> list[str]:
        """Names of all folders."""
        return [*self.runs["folder"]]

    @cached_property
    def errors(self) -> list[Record]:
        """Standard errors of the last and of the best round, where a paper prints a ±."""
        found = []
        for cell in self.cells.values():
            first = _record(cell)
            stated = _printed(first, TAKEN).error
            known = [_values(cell, Reading(at)) for at in ("last", "best")]
            if stated is not None and min(map(len, known)) > 2 and not first["experiment"]:
                last, best = (Estimate.of(values).error for values in known)
                name = ", ".join(filter(None, [first["row"], first["column"]]))
                told = {"cell": name, "partition": first["whose"], "seeds": len(known[0])}
                found.append({**told, "last": last, "best": best, "printed": stated})
        return found

    @cached_property
    def claims(self) -> list[Record]:
        """A record for each claim: the paper's own method beats another one in a column.

        It has the verdict of the reading that is taken, and those of the others, by name.
        """
        runs = self.runs[self.runs["experiment"] == ""]
        own = runs["own"]
        pairs = runs[own].merge(runs[~own], on=ALIKE, suffixes=("", "_rival"))
        found = []
        for _, group in pairs.groupby(["paper", "like", "row", "row_rival"], sort=False):
            best = group[group["released"]] if group["released"].any() else group
            claims = {r.name: self._claim(best, r) for r in self._readings_of(best)}
            known = {name: claim for name, claim in claims.items() if claim}
            taken = next(iter(known.values()), {"is_claimed": False})
            if taken["is_claimed"]:
                others = {name: claim["verdict"] for name, claim in known.items()}
                found.append({**taken, "by": others})
        return found

    def _readings_of(self, pairs: pd.DataFrame) -> Iterable[Reading]:
        return readings(self.assumed(_record(pairs)), pairs["setting"].unique())

    def _claim(self, pairs: pd.DataFrame, reading: Reading) -> Record | None:
        pairs = pairs[pairs["setting"] == reading.setting].sort_values("seed")
        names = [name for name in pairs if str(name).endswith("_rival")]
        rivals = pairs.drop(columns=[str(n).removesuffix("_rival") for n in names])
        rivals = rivals.rename(columns={name: str(name).removesuffix("_rival") for name in names})
        both = [_by_seed(side, reading) for side in (pairs, rivals)]
        if pairs.empty or not all(both):
            return None
        own, rival = _record(pairs), _record(rivals)
        gaps = [ours - theirs for ours, theirs in zip(*both, strict=True)]
        stated = [_printed(side, reading) for side in (own, rival)]
        spreads = [(one.spread, 1 / one.count) for one in stated if one.spread is not None]
        gap = math.fsum(gaps) / len(gaps)
        printed_gap = round(own["reported"] - rival["reported"], 9)
        # A gap that the paper's own errors do not support is no claim.
        is_seen = len(spreads) < 2 or _holds(printed_gap, half(spreads)) == "yes"
        width = self._gap_width(own, rival, gaps, reading)
        return {
            **{key: rival[key] for key in ("paper", "table", "column", "whose")},
            **{"own": own["row"], "rival": rival["row"], "printed": printed_gap, "gap": gap},
            **{"half": width, "verdict": _holds(gap, width), "setting": reading.setting},
            "seeds": " ".join(map(str, pairs["seed"])),
            "is_claimed": printed_gap > 0 and is_seen,
        }

    def _gap_width(
        self, own: Record, rival: Record, gaps: Sequence[float], reading: Reading
    ) -> float | None:
        if len(gaps) > 2:
            return half([(spread, 1 / len(gaps)) for spread in _spread(gaps)])
        known = []
        for run in (own, rival):
            cell = self.cells[tuple(run[name] for name in CELL)]
            known.append(pooled(self.spreads(cell, reading)))
        if known[0] is None or known[1] is None:
            return None
        return half([(known[0], 1 / len(gaps)), (known[1], 1 / len(gaps))])


def _holds(gap: float, width: float | None) -> str:
    if width is None or round(abs(gap) - width, 9) <= 0:
        return "undecided"
    return "yes" if gap > 0 else "no"


def counts(rows: Iterable[Record], reading: Reading = TAKEN) -> Counter[str]:
    """Count the verdicts of rows by a reading."""
    return Counter(by(row, reading)["verdict"] for row in rows)


def by(row: Record, reading: Reading) -> Record:
    """Return a row's judgement by a reading, as far as its paper leaves it open and it has run."""
    known: dict[Reading, Record] = {judged["reading"]: judged for judged in row["readings"]}
    for wanted in (reading, reading._replace(setting=""), Reading(*("", *reading[1:3], ""))):
        if wanted in known:
            return known[wanted]
    return next(iter(known.values()))


def paper_readings(rows: Iterable[Record]) -> list[Reading]:
    """Return the readings of a paper by which any of its rows can be judged."""
    return [*dict.fromkeys(judged["reading"] for row in rows for judged in row["readings"])]


def ranges(rows: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """Return the lowest and highest number of each verdict over the readings of all papers."""
    total = dict.fromkeys(VERDICTS, (0, 0))
    for paper in dict.fromkeys(row["paper"] for row in rows):
        own = [row for row in rows if row["paper"] == paper]
        found = [counts(own, reading) for reading in paper_readings(own)]
        for name, (low, high) in total.items():
            each = [count[name] for count in found]
            total[name] = (low + min(each), high + max(each))
    return total


def hangs_on(row: Record) -> list[Record]:
    """Return the readings that change a row's verdict, with as few fields changed as it takes."""
    if not row["readings"]:
        return []
    taken = row["readings"][0]
    changed = [judged for judged in row["readings"] if judged["verdict"] != taken["verdict"]]
    apart = [sum(map(ne, judged["reading"], taken["reading"])) for judged in changed]
    return [judged for judged, fields in zip(changed, apart, strict=True) if fields == min(apart)]


def _is_last(run: Record, reading: Reading) -> bool:
    return (reading.criterion or run["metric"].rpartition("/")[2]) == "last"


def _record(runs: pd.DataFrame) -> Record:
    """Return the first of some runs, with Python's own types."""
    (first,) = runs.head(1).to_dict("records")
    return {str(key): value for key, value in first.items()}


def _by_seed(runs: pd.DataFrame, reading: Reading) -> list[float]:
    """Return the number of each run by a reading; none if one of them has no such number."""
    key = (reading.criterion, reading.averaging)
    found = [scores.get(key, math.nan) for scores in runs["scores"]]
    return [] if any(map(math.isnan, found)) else found


def _values(cell: pd.DataFrame, reading: Reading) -> list[float]:
    """Return a cell's independent numbers: of each seed, or of each partition of our own."""
    cell = cell[cell["setting"] == reading.setting]
    values = pd.Series(_by_seed(cell, reading), dtype=float)
    if len(values) and not cell["released"].iloc[0]:
        values = values.groupby(cell["partition"].to_numpy()).mean()
    return [float(value) for value in values]


def _spread(values: Sequence[float]) -> list[Deviation]:
    """Return how values spread, if there are several."""
    spread = Estimate.of(values).spread if values else None
    return [] if spread is None else [spread]


def _printed(run: Record, reading: Reading) -> Estimate:
    spread = None if math.isnan(run["spread"]) else run["spread"]
    return printed(run["paper"], run["reported"], spread, reading.error)
