"""The rows, page and pictures of the ledger, made from its folders."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pfl.ledger.cells import Entry
from pfl.ledger.rows import UNEXPLAINED, Row, interval, verdict
from pfl.results.runs import RunFolder
from pfl.results.sheets import Sheet, markdown
from pfl.results.style import WIDTH, Look, legend_above, panels

Runs = Sequence[tuple[Entry, RunFolder]]

HEAD = """\
# Ledger

Cells of the papers' tables that this project has run at their own length. `pfl ledger` makes this
page, [ledger.csv](ledger.csv) and the pictures from the folders of `results/ledger`, which hold the
configuration of each run, a row a round, and its summary. Numbers are per cent.

A cell with several seeds is *in* if the paper's number lies in our 95 % interval (Student's t),
which is wide for two seeds; the number after our ± is the standard error. One seed has no interval:
it is judged by the spread that the paper prints, and where it prints none, it is *near* within two
points. A cell that is *out* says why, as far as that is known. What an average
partition would give is estimated from the clients of the run (`python -m benchmarks.skew RUN`): the
accuracy of a client follows the share of its largest class. "sd" is a partition's standard
deviation.
"""


def cell_name(entry: Entry) -> str:
    """Return a cell's row and column, such as ``FedAS, beta 0.1, P 0.2``."""
    return ", ".join([entry.row, *(f"{axis} {label}" for axis, label in entry.column.items())])


def reasons(file: Path) -> dict[tuple[str, str, str], str]:
    """Read the reasons why cells are out, by paper, table and cell; empty without the file."""
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8") as stream:
        return {(r["paper"], r["table"], r["cell"]): r["reason"] for r in csv.DictReader(stream)}


def rows(runs: Runs, known: Mapping[tuple[str, str, str], str]) -> list[Row]:
    """Return one row for each cell, over its seeds."""

    def where(run: tuple[Entry, RunFolder]) -> tuple[str, str, str]:
        return run[0].paper, run[0].table, cell_name(run[0])

    return [
        _row(list(members), known.get(place, ""))
        for place, members in groupby(sorted(runs, key=lambda run: _order(*where(run))), key=where)
    ]


def _order(*texts: str) -> list[str]:
    """Return a sort key by which "J 50" comes before "J 100"."""
    return [re.sub(r"(?<![\d.])\d+", lambda found: found[0].zfill(9), text) for text in texts]


def _row(members: Runs, reason: str) -> Row:
    members = sorted(members, key=lambda run: run[0].seed)
    first = members[0][0]
    values = [float(run.summary["summary"][entry.metric]) for entry, run in members]
    error, low, high = interval(values) or (None, None, None)
    judged, by = verdict(values, first.reported, first.spread)
    return Row(
        paper=first.paper,
        table=first.table,
        cell=cell_name(first),
        seeds=" ".join(str(entry.seed) for entry, _ in members),
        ours=float(np.mean(values)),
        error=error,
        low=low,
        high=high,
        reported=first.reported,
        spread=first.spread,
        verdict=judged,
        by=by,
        reason=(reason or UNEXPLAINED) if judged == "out" else "",
        partitions=_once(entry.partition for entry, _ in members),
        commit=_once(entry.commit for entry, _ in members),
        hardware=_once(entry.hardware for entry, _ in members),
        note=_once(entry.note for entry, _ in members),
    )


def _once(words: Iterator[str]) -> str:
    return " ".join(dict.fromkeys(words))


def page(found: Sequence[Row], pictures: Mapping[tuple[str, str], str]) -> str:
    """Return the page in Markdown.

    Args:
        found: All rows.
        pictures: File name of each table's picture, by paper and table.
    """
    counts = {word: sum(row.verdict == word for row in found) for word in ("in", "near", "out")}
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    parts = [HEAD, f"{len(found)} cells: {told}.\n"]
    for place, members in groupby(found, key=lambda row: (row.paper, row.table)):
        parts.append(f"## {place[0]}, {place[1]}\n")
        parts.append(_table(list(members)))
        if place in pictures:
            parts.append(f"![{place[0]}, {place[1]}: score over rounds]({pictures[place]})\n")
    return "\n".join(parts)


def _table(members: Sequence[Row]) -> str:
    columns = ["cell", "ours", "reported", "difference", "seeds", "verdict", "by", "reason"]
    cells = [
        [
            row.cell,
            _percent(row.ours, row.error),
            "-" if row.reported is None else _percent(row.reported, row.spread),
            "-" if row.difference is None else f"{100 * row.difference:+.2f}",
            row.seeds,
            row.verdict,
            _judged_by(row),
            row.reason or "-",
        ]
        for row in members
    ]
    notes = [_noted(members, what) for what in ("commit", "hardware", "note")]
    text = markdown([Sheet("", columns, cells)]).partition("\n\n")[2]
    return "\n\n".join([text.rstrip("\n"), *filter(None, notes)]) + "\n"


def _judged_by(row: Row) -> str:
    if row.low is None or row.high is None:
        return row.by
    return f"{row.by}, {100 * row.low:.1f} to {100 * row.high:.1f}"


def _noted(members: Sequence[Row], what: str) -> str:
    """Return what is noted of a table's cells, with the names of the cells where they differ."""
    phrases: dict[str, list[str]] = {}
    for row in members:
        for phrase in filter(None, getattr(row, what).split("; ")):
            phrases.setdefault(phrase, []).append(row.cell)
    # A cell may have several notes, but has one commit and hardware: what most have needs no names.
    enough = len(members) if what == "note" else len(members) // 2 + 1
    parts = [
        phrase if len(cells) >= enough else f"{phrase} (only {' and '.join(cells)})"
        for phrase, cells in sorted(phrases.items(), key=lambda pair: -len(pair[1]))
    ]
    return f"{what.capitalize()}: {'; '.join(parts)}." if parts else ""


def _percent(value: float, error: float | None) -> str:
    text = f"{100 * value:.2f}"
    return text if error is None else f"{text} ± {100 * error:.2f}"


def curves(runs: Runs) -> Iterator[tuple[tuple[str, str], Figure]]:
    """Draw each table's scores over rounds: one panel for each column, reported values as lines."""

    def where(run: tuple[Entry, RunFolder]) -> tuple[str, str]:
        return run[0].paper, run[0].table

    for place, members in groupby(sorted(runs, key=where), key=where):
        yield place, _drawn(list(members))


def _drawn(members: Runs) -> Figure:
    looks = {name: Look.of(n) for n, name in enumerate(sorted({e.row for e, _ in members}))}
    found = {tuple(entry.column.items()) for entry, _ in members}
    columns = sorted(found, key=lambda column: _order(*(label for _, label in column)))
    figure, axes = panels(len(columns), WIDTH, 2.6, sharey=True)
    for panel, column in zip(axes, columns, strict=True):
        named: set[str] = set()
        for entry, run in members:
            if tuple(entry.column.items()) != column:
                continue
            metric, look = entry.metric.rpartition("/")[0], looks[entry.row]
            tested = run.evaluated(metric)
            label = None if entry.row in named else entry.row
            panel.plot(
                tested,
                run.values(metric, tested),
                color=look.color,
                linestyle=look.linestyle,
                label=label,
            )
            if entry.reported is not None and label is not None:
                panel.axhline(entry.reported, color=look.color, linewidth=0.6)
            named.add(entry.row)
        panel.set_title(", ".join(f"{axis} {label}" for axis, label in column))
        panel.set_xlabel("communication rounds")
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_ylabel("score; thin lines: reported")
    legend_above(figure, axes[0])
    return figure
