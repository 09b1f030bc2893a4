"""From the runs of the ledger to verdicts: of cells, of draws, and of the papers' claims."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from pydantic import BaseModel, TypeAdapter

from benchmarks.ledger.noise import LEVEL, Noise, half, pooled
from benchmarks.ledger.runs import read, table
from pfl.disk.reading import FileError, read_yaml
from pfl.extras.papers.agreement import is_within
from pfl.extras.papers.reported import printed

HERE = Path(__file__).parent
Record: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str, ...]
# What makes a cell; its runs in words; what makes a place of noise, and methods alike.
CELL = ["paper", "table", "column", "row", "whose", "departure"]
TOLD = ("commit", "hardware", "note")
PLACE = ["paper", "row", "table", "column", "partition"]
ALIKE = ["paper", "like", "pooled", "whose", "partition", "seed"]


class Paper(BaseModel):
    """What the ledger knows of a paper, from ``papers.yaml``.

    Attributes:
        own: The rows that are the paper's own method.
        claim: What the paper claims of it, in words.
        redrawn: Departures that only draw the partition anew, as the table's seeds do.
        same_column: Columns of one table that are columns of another one.
    """

    own: list[str] = []
    claim: str = ""
    redrawn: list[str] = []
    same_column: dict[str, str] = {}


class Rule(BaseModel):
    """A rule by which the ledger judges, from ``rules.yaml``.

    Attributes:
        date: When it was fixed.
        hash: Hash of date and text.
        text: The rule.
    """

    date: str
    hash: str
    text: str


NO_RULE = Rule(date="", hash="", text="")


@dataclass(frozen=True, eq=False)
class Ledger:
    """Runs, and what is said of them.

    Attributes:
        found: The runs, see :func:`benchmarks.ledger.runs.read`.
        reasons: ``reason`` and ``command`` by paper, table, row, column and whose partition.
        spreads: What partitions differ by where a paper prints no spread, by paper, table, column.
    """

    found: pd.DataFrame
    reasons: Mapping[Hashable, tuple[str, str]]
    spreads: Mapping[Hashable, Noise]

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """Read a folder.

        Raises:
            FileError: One of its runs or tables is damaged.
        """
        where = ["paper", "table", "cell", "partition"]
        reasons = table(folder / "reasons.csv", *where, "reason", "command").set_index(where)
        where = ["paper", "table", "column"]
        spreads = table(file := folder / "spreads.csv", *where, "sd", "df").set_index(where)
        numbers = spreads.apply(pd.to_numeric, errors="coerce")
        if not ((numbers > 0) & (numbers < math.inf)).all(axis=None):
            raise FileError(f"{file}: sd and df must be positive numbers")
        return cls(
            read(folder),
            {key: (row["reason"], row["command"]) for key, row in reasons.iterrows()},
            {key: Noise(row["sd"], row["df"], "partitions") for key, row in numbers.iterrows()},
        )

    @cached_property
    def papers(self) -> dict[str, Paper]:
        """The papers, by name."""
        known = TypeAdapter(dict[str, Paper]).validate_python(read_yaml(HERE / "papers.yaml"))
        return defaultdict(Paper, known)

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name."""
        return read_rules(HERE / "rules.yaml")

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs, and what else is known of them."""
        runs, papers = self.found.copy(), self.papers
        runs["whose"] = runs["released"].map({True: "released", False: "own"})
        runs["pooled"] = runs["metric"].str.startswith("test/pooled/")
        runs["own"] = [row in papers[paper].own for paper, row in runs[["paper", "row"]].values]
        runs["like"] = [
            papers[paper].same_column.get(f"{table}, {column}", f"{table}, {column}")
            for paper, table, column in runs[["paper", "table", "column"]].values
        ]
        pairs = runs[["paper", "departure"]].values
        runs["redrawn"] = [departure in papers[paper].redrawn for paper, departure in pairs]
        runs["departure"] = runs["departure"].mask(runs["redrawn"], "")
        return runs

    @cached_property
    def judged(self) -> pd.DataFrame:
        """The runs of tables' cells, without those with other settings."""
        return self.runs[self.runs["departure"] == ""]

    @cached_property
    def seeds(self) -> dict[Place, Noise | None]:
        """What seeds on one partition differ by: of cells, of methods, and of a paper's methods."""
        cells: dict[Place, Noise | None] = {
            tuple(map(str, place)): Noise(float(values.std()), len(values) - 1, "seeds")
            for place, values in self.judged.groupby(PLACE)["ours"]
            if len(values) > 1
        }
        methods = _pooled(cells, 2, "seeds", 1)
        return {**cells, **methods, **_pooled(methods, 1, "pooled seeds", 2)}

    def noise(self, run: Record, others: bool = True) -> Noise | None:
        """Return what seeds of a run's method differ by.

        Args:
            run: The run.
            others: Whether all methods of the paper may stand in for a method without seeds.
        """
        place = tuple(run[name] for name in PLACE)
        if place[:2] in self.seeds:
            return self.seeds[place[:2]] or self.seeds.get(place)
        return self.seeds.get(place[:1]) if others else None

    def weights(self, runs: pd.DataFrame) -> dict[Noise, float] | None:
        """Return the noise of a cell's difference to the paper, if known, for :func:`half`."""
        first, count = _record(runs), len(runs)
        if math.isnan(first["reported"]):
            return None
        runs_printed, theirs = printed_noise(first)
        if theirs is not None:
            ours = Noise(float(runs["ours"].std()), count - 1, "printed") if count > 1 else theirs
            return {**(Counter({theirs: 1 / runs_printed}) + Counter({ours: 1 / count}))}
        place = (first["paper"], first["table"], first["column"])
        known = self.noise(first) if first["released"] else self.spreads.get(place)
        return None if known is None else {known: 1 / runs_printed + 1 / count}

    @cached_property
    def rows(self) -> list[Record]:
        """A record for each cell and kind of partition, over its seeds; see the page's columns.

        ``half`` is half the 95 % interval of the difference. The ``rule`` is what judges the cell,
        with its date and hash, and whether one of the runs ended before that. Cells with a
        ``departure`` are not judged.
        """
        return [self._row(cell) for _, cell in self.runs.groupby(CELL, sort=False)]

    def _row(self, cell: pd.DataFrame) -> Record:
        first, weights = _record(cell), self.weights(cell)
        difference, interval = float(cell["ours"].mean() - first["reported"]), half(weights)
        inside = None if first["departure"] else is_within(difference, interval)
        names = [] if inside is None else [noise.rule for noise in weights or ()][:1]
        names += ["redrawn"] if names and first["redrawn"] else []
        rule = max((self.rules[name] for name in names), key=lambda r: r.date, default=NO_RULE)
        name = ", ".join(filter(None, [first["row"], first["column"]]))
        place = (first["paper"], first["table"], name, first["whose"])
        explained = inside is not True and not first["departure"]
        reason, command = self.reasons.get(place, ("", "")) if explained else ("", "")
        return {
            **{key: first[key] for key in ("paper", "table", "row", "own", "metric")},
            **{key: first[key] for key in ("departure", "reported", "spread")},
            **{key: float(cell[key].mean()) for key in ("ours", "last", "best")},
            **{key: "; ".join(filter(None, cell[key].unique())) for key in TOLD},
            **{"cell": name, "partition": first["whose"]},
            **{"difference": difference, "half": interval, "verdict": verdict(inside)},
            **{"rule": ", ".join(names), "rule_date": rule.date, "rule_hash": rule.hash},
            "judged_afterwards": any(ended < rule.date for ended in cell["ended"]),
            **{"reason": reason, "command": command},
            "runs": cell[["seed", "folder"]].to_dict("records"),
        }

    @cached_property
    def draws(self) -> list[Record]:
        """A record for each partition: all its cells with a printed number, judged together."""
        runs = self.judged[self.judged["reported"].notna()]
        return [self._draw(draw) for _, draw in runs.groupby(["paper", "partition"], sort=False)]

    def _draw(self, draw: pd.DataFrame) -> Record:
        found = [cell for _, cell in draw.groupby(["table", "column", "row"], sort=False)]
        level, cells = 1 - (1 - LEVEL) / len(found), []
        for cell in found:
            row, interval = self._row(cell), half(self.weights(cell), level)
            joint = verdict(is_within(row["difference"], interval))
            cells.append({**row, "half": interval, "verdict": joint})
        # A cell outside decides, or else one that cannot be judged.
        order = ("in", "-", "out")
        worst = max(cells, key=lambda c: (order.index(c["verdict"]), abs(c["difference"])))
        rms = math.sqrt(sum(cell["difference"] ** 2 for cell in cells) / len(cells))
        return {**worst, "column": draw["column"].iloc[0], "cells": len(cells), "rms": rms}

    @cached_property
    def claims(self) -> list[Record]:
        """A record for each claim: the paper's own method beats another one in a column."""
        runs, own = self.judged, self.judged["own"]
        pairs = runs[own].merge(runs[~own], on=ALIKE, suffixes=("", "_rival"))
        groups = pairs.groupby(["paper", "like", "row", "row_rival"], sort=False)
        claims = [self._claim(group.sort_values("seed")) for _, group in groups]
        return [claim for claim in claims if claim["is_claimed"]]

    def _claim(self, pairs: pd.DataFrame) -> Record:
        released = pairs[pairs["released"]]
        pairs = pairs if released.empty else released
        own = _record(pairs)
        rival = {**own, **{k.removesuffix("_rival"): own[k] for k in own if k.endswith("_rival")}}
        printed_gap = round(own["reported"] - rival["reported"], 9)
        spreads = {noise: 1 / n for n, noise in map(printed_noise, (own, rival)) if noise}
        seen = len(spreads) < 2 or not is_within(printed_gap, half(spreads))
        gaps, count = pairs["ours"] - pairs["ours_rival"], len(pairs)
        noises = [self._gap_noise(own), self._gap_noise(rival)]
        if count > 2:
            noises = [Noise(float(gaps.std()), count - 1, "claims")]
        weights = defaultdict[Noise, float](float)
        for noise in filter(None, noises):
            weights[noise] += 1 / count
        gap, interval = float(gaps.mean()), half(None if None in noises else weights)
        words = {None: "-", True: "within noise", False: "yes" if gap > 0 else "no"}
        return {
            **{key: rival[key] for key in ("paper", "table", "column", "whose")},
            **{"own": own["row"], "rival": rival["row"], "printed": printed_gap, "gap": gap},
            **{"ours": float(pairs["ours"].mean()), "theirs": float(pairs["ours_rival"].mean())},
            **{"half": interval, "verdict": words[is_within(gap, interval)]},
            "seeds": " ".join(map(str, pairs["seed"])),
            "is_claimed": printed_gap > 0 and seen,
        }

    def _gap_noise(self, run: Record) -> Noise | None:
        """Return what seeds of a method differ by: here, as printed, or as all of the paper do."""
        return self.noise(run, others=False) or printed_noise(run)[1] or self.noise(run)


def _record(runs: pd.DataFrame) -> Record:
    """Return the first of some runs, with Python's own types."""
    (first,) = runs.head(1).to_dict("records")
    return {str(key): value for key, value in first.items()}


def _pooled(
    noises: Mapping[Place, Noise | None], depth: int, rule: str, least: int
) -> dict[Place, Noise | None]:
    """Pool noises whose places begin alike: all of them, and at least so many, or none."""
    groups = defaultdict[Place, list[Noise | None]](list)
    for place, noise in noises.items():
        groups[place[:depth]].append(noise)
    found: dict[Place, Noise | None] = {}
    for place, group in groups.items():
        known = [noise for noise in group if noise is not None]
        found[place] = pooled(known, rule) if len(known) >= max(least, len(group)) else None
    return found


def printed_noise(run: Record) -> tuple[int, Noise | None]:
    """Return how many runs a printed number is of, and what they differ by if that is printed."""
    spread = None if math.isnan(run["spread"]) else run["spread"]
    estimate = printed(run["paper"], run["reported"], spread)
    known = estimate.spread
    return estimate.count, None if known is None else Noise(*known, "printed")


def verdict(inside: bool | None) -> str:
    """Return ``in`` or ``out``; ``-`` for what cannot be judged."""
    return {None: "-", True: "in", False: "out"}[inside]


def read_rules(file: Path) -> dict[str, Rule]:
    """Read the rules.

    Raises:
        FileError: A rule is not the one that its hash was made of.
    """
    rules = TypeAdapter(dict[str, Rule]).validate_python(read_yaml(file))
    for name, rule in rules.items():
        right = hashlib.sha256(f"{rule.date}\n{rule.text}".encode()).hexdigest()[:12]
        if rule.hash != right:
            raise FileError(
                f"{file}: the rule {name!r} is not the one of its hash {rule.hash}: give it the"
                f" date of its change, and then the hash that this message names: {right}"
            )
    return rules
