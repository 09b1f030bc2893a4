"""The page of the ledger, made from its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from pfl.ledger.gaps import Draw, RunGroup, groups, printed_gap
from pfl.ledger.judge import Background, Scored, cell_name, natural, partition_name, rows
from pfl.ledger.rows import LedgerRow
from pfl.results.sheets import Sheet, markdown
from pfl.results.statistics import plus_minus

# Half an interval beyond which the page says that agreement shows little.
WIDE = 0.1
# What becomes of a paper's claim where a spread is known.
_CLAIMS = ("yes", "no", "within noise")


@dataclass(frozen=True)
class Compared:
    """Runs beside the papers' numbers.

    Attributes:
        rows: Their cells.
        groups: Methods that ran on one partition.
    """

    rows: Sequence[LedgerRow]
    groups: Sequence[RunGroup]

    @classmethod
    def of(cls, runs: Sequence[Scored], known: Background) -> Compared:
        """Compare runs."""
        return cls(rows(runs, known), groups(runs, known))

    def at(self, place: tuple[str, str]) -> Compared:
        """Return those of one paper and table."""
        return Compared(
            [row for row in self.rows if (row.paper, row.table) == place],
            [group for group in self.groups if _place(group) == place],
        )


def page(
    of_tables: Compared,
    others: Compared,
    draws: Sequence[Draw],
    pictures: Mapping[tuple[str, str], str],
) -> str:
    """Return the page in Markdown.

    Args:
        of_tables: Runs of tables' cells.
        others: Runs with other settings.
        draws: All partitions with the runs of tables' cells.
        pictures: File name of each table's picture, by paper and table.
    """
    head = resources.files("pfl.ledger").joinpath("head.md").read_text(encoding="utf-8")
    parts = [head, _headline(of_tables, draws), _draws(draws)]
    places = {(row.paper, row.table) for row in [*of_tables.rows, *others.rows]}
    for place in sorted(places, key=lambda place: natural(*place)):
        parts.append(f"## {place[0]}, {place[1]}\n")
        here, departed = of_tables.at(place), others.at(place)
        parts += [_table(here.rows)] if here.rows else []
        parts += [_gaps(group, group.claims()) for group in here.groups]
        parts += [_departures(departed.rows)] if departed.rows else []
        parts += [_gaps(group) for group in departed.groups]
        if place in pictures:
            parts.append(f"![{place[0]}, {place[1]}: score over rounds]({pictures[place]})\n")
    return "\n".join(parts)


def _place(group: RunGroup) -> tuple[str, str]:
    return group.runs[0].entry.paper, group.runs[0].entry.table


def _headline(compared: Compared, draws: Sequence[Draw]) -> str:
    """Return the table of papers: draws that agree, cells, and claims that hold."""
    lines = []
    for paper in dict.fromkeys(row.paper for row in compared.rows):
        of_cells = [row for row in compared.rows if row.paper == paper]
        of_paper = [draw for draw in draws if draw.runs[0].entry.paper == paper]
        of_groups = (group.claims() for group in compared.groups if _place(group)[0] == paper)
        claims = sum(of_groups, Counter[str]())
        lines.append(
            [
                paper,
                _counted(Counter(draw.verdict for draw in of_paper)),
                _counted(Counter(row.verdict for row in of_cells)),
                _counted(Counter(row.verdict_last for row in of_cells)),
                _counted(Counter(row.verdict_best for row in of_cells)),
                *(str(claims[word]) for word in _CLAIMS[:-1]),
                f"{claims[_CLAIMS[-1]]}{_open(claims)}",
            ]
        )
    columns = [
        *("paper", "draws", "cells", "by the last round", "by the best"),
        *(f"A beats B: {_CLAIMS[0]}", *_CLAIMS[1:]),
    ]
    together = Counter(draw.verdict for draw in draws)
    known = [f"{together['in']} agree with their papers", f"{together['out']} do not"]
    known += [f"{together['-']} cannot be judged"] if together["-"] else []
    verdicts = f"{', '.join(known[:-1])}{',' * (len(known) > 2)} and {known[-1]}"
    cells, columns_of = len(compared.rows), len({draw.column for draw in draws})
    opening = f"{cells} cells are {len(draws)} draws of {columns_of} columns: {verdicts}."
    if wide := sum(draw.verdict == "in" and (draw.half or 0) > WIDE for draw in draws):
        has = "has an interval" if wide == 1 else "have intervals"
        opening += f" Of those that agree, {wide} {has} wider than ±{100 * WIDE:.0f} points."
    return f"{opening}\n\n{_markdown(columns, lines)}"


def _draws(draws: Sequence[Draw]) -> str:
    """Return the table of partitions: how far their runs are from the papers together."""
    lines = [
        [
            ", ".join(filter(None, draw.column)),
            partition_name(draw.runs[0].entry),
            str(len({(run.entry.table, cell_name(run.entry)) for run in draw.runs})),
            _plus_minus(draw.difference, draw.half),
            draw.verdict,
        ]
        for draw in draws
    ]
    return _markdown(["draw", "partition", "cells", "median difference", "verdict"], lines)


def _open(counts: Counter[str]) -> str:
    """Return how many claims cannot be judged, if there are any, to stand behind the others."""
    return f", {counts['open']} open" if counts["open"] else ""


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
            "-" if row.reported is None else plus_minus(row.reported, row.spread, 100),
            "-" if row.difference is None else _plus_minus(row.difference, row.half),
            row.verdict,
            f"{100 * row.last:.2f} {row.verdict_last}",
            "-" if row.best is None else f"{100 * row.best:.2f} {row.verdict_best}",
            "-" if row.rounds is None else f"{100 * row.rounds:.2f}",
            row.by,
        ]
        for row in members
    ]
    parts = [_markdown(columns, cells).rstrip("\n"), _reasons(members), _ways(members)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _departures(members: Sequence[LedgerRow]) -> str:
    """Return the table of runs with other settings, which have no verdicts."""
    columns = ["cell", "partition", "seeds", "with", "ours", "reported", "difference", "best"]
    cells = [
        [
            *(row.cell, row.partition, row.seeds, row.departure, f"{100 * row.ours:.2f}"),
            "-" if row.reported is None else plus_minus(row.reported, row.spread, 100),
            "-" if row.difference is None else _plus_minus(row.difference, row.half),
            "-" if row.best is None else f"{100 * row.best:.2f}",
        ]
        for row in members
    ]
    table = _markdown(columns, cells).rstrip("\n")
    return "\n\n".join(filter(None, ["Other settings:", table, _ways(members)])) + "\n"


def _plus_minus(difference: float, half: float | None) -> str:
    """Return a signed difference in points, with half its interval if that is known."""
    return f"{100 * difference:+.2f}" + ("" if half is None else f" ± {100 * half:.2f}")


def _reasons(members: Sequence[LedgerRow]) -> str:
    """List the cells that are out, with what is known and the command that shows it."""
    lines = ["Out:", ""]
    for row in members:
        if row.reason:
            command = f" (`{row.command}`)" if row.command else ""
            lines.append(f"- {row.cell}, {row.partition} partition: {row.reason}{command}")
    return "\n".join(lines) if len(lines) > 2 else ""


def _gaps(group: RunGroup, claims: Counter[str] | None = None) -> str:
    """Return the table of one partition: each method's gap to the reference, ours and printed.

    Args:
        group: Methods that ran on it.
        claims: Counts of the paper's claims; ``None`` leaves them out.
    """
    reference = group.reference
    lines, apart = [], []
    for run in group.runs:
        if run is reference:
            continue
        ours, theirs = run.ours - reference.ours, printed_gap(run, reference)
        half = group.half(run, reference)
        apart.append(abs(ours - theirs))
        lines.append(
            [
                run.entry.row,
                _plus_minus(ours, half),
                f"{100 * theirs:+.2f}",
                f"{100 * (ours - theirs):+.2f}",
            ]
        )
    columns = [f"gap to {reference.entry.row}", "ours", "printed", "difference"]
    rank = group.rank_correlation
    line = f"Gaps, {group.title}: "
    line += "" if rank is None else f"rank correlation with the paper {rank:.2f}; "
    line += f"they differ from the printed ones by {100 * np.median(apart):.2f} in the median."
    if claims is not None:
        words = ", ".join(f"{claims[word]} {word}" for word in _CLAIMS)
        line += f" A beats B: {words}{_open(claims)}."
    return f"{line}\n\n{_markdown(columns, lines)}"


def _markdown(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return markdown([Sheet("", columns, cells)]).partition("\n\n")[2]


def _ways(members: Sequence[LedgerRow]) -> str:
    """Say how the cells ran: in a line what is the same for all, in a table what is not."""
    lines, apart = [], list[str]()
    for what in ("metric", "commit", "hardware", "note"):
        said = {getattr(row, what) for row in members}
        if len(said) > 1:
            apart.append(what)
        elif word := said.pop():
            lines.append(f"{what.capitalize()}: {word}.")
    if apart:
        cells = [
            [row.cell, row.partition, row.seeds, *(getattr(row, what) for what in apart)]
            for row in members
        ]
        lines.append(_markdown(["cell", "partition", "seeds", *apart], cells).rstrip("\n"))
    return "\n\n".join(lines)
