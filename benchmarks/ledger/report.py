"""All numbers of the ledger as one page of ``pfl report``, to read or to send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

import lightning_modules
from benchmarks.ledger.judge import Ledger, Record, counts, hangs_on, paper_readings
from benchmarks.ledger.numbers import pct, rms, signed
from benchmarks.ledger.picture import OF_PAGE, WIDTH, forest
from benchmarks.ledger.readings import FIELDS
from pfl.callbacks.records import about
from pfl.core.sheet import Sheet
from pfl.results.cited import section
from pfl.results.page import Part, Pictures, Rows, Text, both, page, rows
from pfl.results.pictures import Picture
from pfl.results.style import NARROW, styled

_CAPTION = (
    "The papers' own methods: difference to the printed accuracy with its 95 % interval, in "
    "points; the band is two points wide on each side."
)
_NOTE = (
    "Own: on partitions of our own; released: on those of the paper's code. A cell is equal if its "
    "whole interval lies within two points, different if all of it lies outside, and undecided "
    "otherwise or without an interval."
)


def report(ledger: Ledger) -> str:
    """Return the page."""
    verdicts = counts(ledger.judged)
    said = ", ".join(f"{verdicts[name]} {name}" for name in ("equal", "different", "undecided"))
    under = (
        f"{len(ledger.folders)} runs of full length, {len(ledger.judged)} cells: {said}. {_NOTE}"
    )
    sections: dict[str, Sequence[Part]] = {"Papers' own methods": [_picture(ledger)]}
    cells = {f"Cells of {name}": [*_cells(ledger, name)] for name in ledger.papers}
    sections |= {name: parts for name, parts in cells.items() if parts}
    sections["Readings"] = [_assumed(ledger), _by_reading(ledger)]
    sections["Standard errors of seeds"] = [_errors(ledger)]
    sections["What the different ones lack"] = [_reasons(ledger)]
    sections["Runs with settings that no reading has"] = [_experiments(ledger)]
    sections |= section(_methods(ledger))
    repeat = "pfl reproduce results/ledger/FOLDER --set data.root=DIR"
    sections["To repeat it"] = [Text(repeat), _folders(ledger)]
    kept = {name: parts for name, parts in sections.items() if any(map(_has_rows, parts))}
    return page("Full-length runs beside the papers' numbers", under, kept)


def _has_rows(part: Part) -> bool:
    return not isinstance(part, Rows) or any(sheet.rows for sheet in part.groups.values())


def _picture(ledger: Ledger) -> Pictures:
    drawn = []
    for width in (WIDTH, NARROW):
        with styled(width):
            figure = forest(ledger.judged, OF_PAGE, width)
        drawn.append(Picture("ledger", figure, caption=_CAPTION))
    return Pictures([both(*drawn)])


def _cells(ledger: Ledger, paper: str) -> Iterator[Rows]:
    """Yield the cells of a paper's own method, and those of its rivals, by its tables."""
    known = [row for row in ledger.judged if row["paper"] == paper]
    heads = ["", "clients", "runs", "ours (%)", "printed", "difference", "verdict"]
    for own in (True, False):
        groups: dict[str, Sheet] = {}
        for row in (one for one in known if one["own"] is own):
            sheet = groups.setdefault(row["table"], Sheet("", heads, []))
            cells = [*sheet.rows, [_name(row), *_numbers(row), _verdict(row)]]
            groups[row["table"]] = replace(sheet, rows=cells)
        if groups:
            count = sum(len(sheet.rows) for sheet in groups.values())
            yield Rows(groups, "" if own else f"{count} cells of other methods")


def _name(row: Record) -> str:
    return str(row["cell"]).replace("data ", "")


def _numbers(row: Record) -> list[str]:
    runs = sum(run["setting"] == row["setting"] for run in row["runs"])
    printed = pct(row["reported"], row["spread"])
    difference = signed(row["difference"], row["half"])
    return [row["partition"], f"{runs}", pct(row["ours"]), printed, difference]


def _verdict(row: Record) -> str:
    others = (f"{other['reading'].name}: {other['verdict']}" for other in hangs_on(row))
    return Markup("<br>").join([row["verdict"], *others])


def _assumed(ledger: Ledger) -> Rows:
    """Return what is taken where a paper may be silent, and what it may be instead."""
    cells = [[field, *(p.told(field) for p in ledger.papers.values())] for field in FIELDS]
    note = 'What is taken, in brackets where that is from, and after "or" what it may be instead.'
    return rows(Sheet("", ["", *ledger.papers], cells, notes=[note]), words=True)


def _by_reading(ledger: Ledger) -> Rows:
    cells = []
    for paper in ledger.papers:
        known = [row for row in ledger.judged if row["paper"] == paper]
        for reading in (one for one in paper_readings(known) if one.is_simple):
            found = counts(known, reading)
            told = [f"{found[name]}" for name in ("equal", "different", "undecided")]
            cells.append(
                [f"{paper}, {reading.name or 'as taken'}", *told, pct(rms(known, reading))]
            )
    heads = ["reading", "equal", "different", "undecided", "rms difference"]
    return rows(Sheet("", heads, cells))


def _errors(ledger: Ledger) -> Rows:
    cells = [
        [f"{_name(row)} ({row['partition']})", f"{row['seeds']}"]
        + [pct(row[name]) for name in ("last", "best", "printed")]
        for row in ledger.errors
    ]
    return rows(Sheet("", ["cell", "seeds", "last round", "best round", "printed"], cells))


def _reasons(ledger: Ledger) -> Rows:
    found = [row for row in ledger.judged if row["verdict"] == "different"]
    cells = [[_name(row), row["reason"] or "unexplained", row["command"]] for row in found]
    return rows(Sheet("", ["cell", "reason", "shown by"], cells), words=True)


def _experiments(ledger: Ledger) -> Rows:
    found = [row for row in ledger.rows if row["experiment"]]
    heads = ["cell", "with", "clients", "runs", "ours (%)", "printed", "difference"]
    cells = [[_name(row), row["experiment"], *_numbers(row)] for row in found]
    return rows(Sheet("", heads, cells), f"{len(cells)} cells")


def _methods(ledger: Ledger) -> Mapping[str, Mapping[str, str]]:
    """Return what the classes of the papers' methods say of themselves, by name."""
    kinds = (getattr(lightning_modules, name, None) for name in ledger.papers)
    told = [about(kind) for kind in kinds if kind is not None]
    return {one["name"]: one for one in told if one}


def _folders(ledger: Ledger) -> Rows:
    cells = [[name] for name in ledger.folders]
    return rows(Sheet("", ["FOLDER"], cells), f"{len(cells)} folders", words=True)
