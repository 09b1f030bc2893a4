"""The page of the ledger, made from its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from pfl.ledger.gaps import Draw, RunGroup, printed_gap
from pfl.ledger.rows import LedgerRow
from pfl.results.sheets import Sheet, markdown

HEAD = """\
# Ledger

Cells of the papers' tables that this project has run at their own length. `pfl ledger` makes this
page, [ledger.csv](ledger.csv) and the pictures from the folders of `results/ledger`. Numbers are
per cent.

**What is compared.** A cell's number by the paper's criterion, named below each table, with the
paper's number. The last and the best round stand beside it with verdicts of their own. Which one
counts was fixed before the runs and is not chosen afterwards.

**Whose partition.** *released*: each client has as many samples of each class as in the paper's
released code. *own*: another draw from the same law, whose luck the paper does not share.

**When a cell is in.** Its difference to the paper is within the 95 % interval of what chance alone
gives (Student's t), shown after the ±:

- The paper prints a spread, and we have one run: the prediction interval of one run. A standard
  error of 5 runs gives 2.776 sqrt(6) = 6.8 times itself. Of FedSimSup's and UniVarFL's spreads the
  meaning is not printed: they are read as standard deviations of 3 runs, the narrower reading.
- We have several seeds as well: Welch's interval of the difference.
- The paper prints one run: what single runs differ by, measured here between partitions or, on the
  paper's own partition, between seeds (`results/ledger/spreads.csv` has the commands). Where only
  the spread between partitions is known, it is an upper bound for cells on the paper's own.
- Otherwise there is no verdict: "-".

A wide interval says little, so *in* is worth what its ± is small. "rounds" is the standard
deviation of the last eight tests of the second half: what the choice of one round alone can do.

**Draws.** Runs that share a partition share its luck. They are one draw, which is in if the median
of their differences is within the median of their intervals.

**Claims.** "A beats B" holds (*yes*) if our gap has the paper's sign and is outside its interval,
does not (*no*) if it has the other sign and is outside, and is *within noise* otherwise. Both run
on one partition. The noise of a method is the printed spread or, without one, what is left of the
differences to the paper within the partitions of that paper once each partition's median is taken
off (median absolute deviation). Pairs of one partition are not independent.
"""


def page(
    found: Sequence[LedgerRow],
    draws: Sequence[Draw],
    groups: Sequence[RunGroup],
    pictures: Mapping[tuple[str, str], str],
) -> str:
    """Return the page in Markdown.

    Args:
        found: All rows.
        draws: All partitions with their runs.
        groups: Methods that ran on one partition.
        pictures: File name of each table's picture, by paper and table.
    """
    parts = [HEAD, _headline(found, draws, groups)]
    for place, members in groupby(found, key=lambda row: (row.paper, row.table)):
        parts.append(f"## {place[0]}, {place[1]}\n")
        parts.append(_table(list(members)))
        runs = [group for group in groups if _place(group) == place]
        parts += [_gaps(group) for group in runs]
        if place in pictures:
            parts.append(f"![{place[0]}, {place[1]}: score over rounds]({pictures[place]})\n")
    return "\n".join(parts)


def _place(group: RunGroup) -> tuple[str, str]:
    return group.runs[0].entry.paper, group.runs[0].entry.table


def _headline(found: Sequence[LedgerRow], draws: Sequence[Draw], groups: Sequence[RunGroup]) -> str:
    """Return the table of papers: draws that agree, cells, and claims that hold."""
    lines = []
    for paper in dict.fromkeys(row.paper for row in found):
        rows = [row for row in found if row.paper == paper]
        own = [draw for draw in draws if draw.runs[0].entry.paper == paper]
        claims: Counter[str] = Counter()
        for group in groups:
            claims += group.claims() if group.runs[0].entry.paper == paper else Counter()
        lines.append(
            [
                paper,
                _counted(Counter(draw.verdict for draw in own)),
                _counted(Counter(row.verdict for row in rows)),
                _counted(Counter(row.verdict_last for row in rows)),
                _counted(Counter(row.verdict_best for row in rows)),
                *(str(claims[word]) for word in ("yes", "no", "within noise")),
            ]
        )
    columns = [
        *("paper", "draws", "cells", "by the last round", "by the best"),
        *("A beats B: yes", "no", "within noise"),
    ]
    together = Counter(draw.verdict for draw in draws)
    told = (
        f"{len(found)} cells are {len(draws)} independent draws, of which {together['in']} agree "
        f"with their papers, {together['out']} do not, and {together['-']} cannot be judged."
    )
    return f"{told}\n\n{_markdown(columns, lines)}"


def _counted(counts: Counter[str]) -> str:
    words = [f"{counts[word]} {word}" for word in ("in", "out") if counts[word]]
    return ", ".join([*words, *([f"{counts['-']} open"] if counts["-"] else [])])


def _table(members: Sequence[LedgerRow]) -> str:
    columns = [
        *("cell", "partition", "seeds", "ours", "reported", "difference", "verdict"),
        *("last", "best", "rounds", "interval"),
    ]
    cells = [
        [
            *(row.cell, row.partition, row.seeds, f"{100 * row.ours:.2f}"),
            "-" if row.reported is None else _percent(row.reported, row.spread),
            _difference(row),
            row.verdict,
            f"{100 * row.last:.2f} {row.verdict_last}",
            f"{100 * row.best:.2f} {row.verdict_best}",
            f"{100 * row.rounds:.2f}",
            row.by,
        ]
        for row in members
    ]
    notes = [_noted(members, what) for what in ("metric", "commit", "hardware", "note")]
    parts = [_markdown(columns, cells).rstrip("\n"), _reasons(members), *notes]
    return "\n\n".join(filter(None, parts)) + "\n"


def _difference(row: LedgerRow) -> str:
    if row.difference is None:
        return "-"
    half = "" if row.half is None else f" ± {100 * row.half:.2f}"
    return f"{100 * row.difference:+.2f}{half}"


def _reasons(members: Sequence[LedgerRow]) -> str:
    """List the cells that are out, with what is known and the command that shows it."""
    lines = ["Out:", ""]
    for row in members:
        if row.reason:
            command = f" (`{row.command}`)" if row.command else ""
            lines.append(f"- {row.cell}, {row.partition} partition: {row.reason}{command}")
    return "\n".join(lines) if len(lines) > 2 else ""


def _gaps(group: RunGroup) -> str:
    """Return the table of one partition: each method's gap to the reference, ours and printed."""
    reference = group.reference
    lines, apart = [], []
    for run in group.runs:
        if run is reference:
            continue
        ours, theirs, half = run.ours - reference.ours, printed_gap(run, reference), None
        half = group.half(run, reference)
        apart.append(abs(ours - theirs))
        interval = "" if half is None else f" ± {100 * half:.2f}"
        lines.append(
            [
                run.entry.row,
                f"{100 * ours:+.2f}{interval}",
                f"{100 * theirs:+.2f}",
                f"{100 * (ours - theirs):+.2f}",
            ]
        )
    columns = [f"gap to {reference.entry.row}", "ours", "printed", "difference"]
    rank = group.rank_correlation
    told = f"Gaps, {group.title}: "
    told += "" if rank is None else f"rank correlation with the paper {rank:.2f}; "
    told += f"they differ from the printed ones by {100 * np.median(apart):.2f} in the median"
    counts = group.claims()
    words = ", ".join(f"{counts[word]} {word}" for word in ("yes", "no", "within noise"))
    return f"{told}. A beats B: {words}.\n\n{_markdown(columns, lines)}"


def _markdown(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return markdown([Sheet("", columns, cells)]).partition("\n\n")[2]


def _noted(members: Sequence[LedgerRow], what: str) -> str:
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
