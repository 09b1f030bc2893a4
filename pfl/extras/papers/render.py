"""The printed table, laid out as in the paper, with its numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from pfl.core.sheet import Record, Sheet
from pfl.extras.papers.outcome import CellOutcome
from pfl.extras.papers.plan import TablePlan
from pfl.extras.papers.reported import NumberFormat
from pfl.extras.papers.spec import TableFile
from pfl.results import names
from pfl.results.statistics import NONE, plus_minus

# A sheet with more columns is divided by the first axis.
_COLUMNS = 4


def sheets(table: TableFile, plan: TablePlan, outcomes: Sequence[CellOutcome]) -> list[Sheet]:
    """Return one sheet, or one per option of the first axis if there are many columns.

    The notes are on the last sheet.
    """
    columns = dict.fromkeys(outcome.cell.column for outcome in outcomes)
    divided = len(columns) > _COLUMNS and max(map(len, columns)) > 1
    parts = groupby(columns, lambda column: column[0]) if divided else [(None, columns)]
    footnotes: dict[str, int] = {}
    made = []
    for head, members in parts:
        chosen = set(members)
        inside = [outcome for outcome in outcomes if outcome.cell.column in chosen]
        title = table.caption + shortened(plan) + (f"; {_named(head)}" if head else "")
        made.append(_sheet(title, inside, 1 if head else 0, table, plan, footnotes))
    reasons = [f"[{number}] {what.rstrip('.')}." for what, number in footnotes.items()]
    notes = [*_notes(outcomes, plan), *table.notes, *reasons]
    return [*made[:-1], replace(made[-1], notes=notes)]


def _sheet(
    title: str,
    outcomes: Sequence[CellOutcome],
    skip: int,
    table: TableFile,
    plan: TablePlan,
    footnotes: dict[str, int],
) -> Sheet:
    """Return a sheet without notes; the first ``skip`` axes are in its title.

    The title has the unit if all cells share it; otherwise cells in per cent are marked.
    """
    columns = list(dict.fromkeys(outcome.cell.column for outcome in outcomes))
    rows = list(dict.fromkeys(outcome.cell.row for outcome in outcomes))
    by_place = {(outcome.cell.row, outcome.cell.column): outcome for outcome in outcomes}
    unit = max((o.cell.reported.unit for o in outcomes if o.cell.reported), default=NumberFormat())
    shares = {outcome.cell: _is_share(outcome.cell.metric, table) for outcome in outcomes}
    alike = all(shares.values())

    def text(outcome: CellOutcome) -> str:
        if shares[outcome.cell]:
            sign = "" if alike or unit.factor == 1 else " %"
            return _text(outcome, unit, footnotes, sign)
        return _text(outcome, NumberFormat(*names.scale(outcome.cell.metric)), footnotes)

    cells = [[row, *(text(by_place[row, column]) for column in columns)] for row in rows]
    headings = [", ".join(map(_named, column[skip:])) or "ours" for column in columns]
    return Sheet(
        title=title + f" ({'%' if unit.factor == 100 else 'fraction'})" * alike,
        columns=["", *headings],
        rows=cells,
        records=[_record(plan, outcome) for outcome in outcomes],
    )


def _is_share(metric: str, table: TableFile) -> bool:
    """Return ``True`` if a metric is a share, shown in per cent or as the paper's fractions.

    Numbers of evaluations that have the form of the main score are shown like the table's own.
    """
    own = table.metric.rpartition("/")[0]
    return names.in_per_cent(own if names.has_form_of_score(metric) else metric)


def _text(
    outcome: CellOutcome, unit: NumberFormat, footnotes: dict[str, int], sign: str = ""
) -> str:
    """Format a cell, such as ``90.81 ± 0.31 (91.03, -0.22, equal)``.

    There is no verdict if only a share of the experiment was run.
    """
    ours, reported = outcome.ours, outcome.cell.reported
    text = NONE if ours is None else ours.text(unit.factor, unit.digits)
    text += sign * (text != NONE)
    if reported is not None:
        shown = [plus_minus(reported.value, reported.error, unit.factor, unit.digits)]
        if (apart := outcome.difference) is not None:
            gap = f"{unit.factor * apart:+.{unit.digits}f}" if math.isfinite(apart) else NONE
            shown += filter(None, [gap, outcome.verdict])
        text += f" ({', '.join(shown)})"
    for what in outcome.trouble:
        text += f" [{footnotes.setdefault(what, len(footnotes) + 1)}]"
    return text


def _notes(outcomes: Sequence[CellOutcome], plan: TablePlan) -> Iterator[str]:
    """Yield notes on the numbers, the share of the experiment, and the points of tests."""
    metrics = dict.fromkeys((outcome.cell.metric, outcome.cell.at) for outcome in outcomes)
    what = "; ".join(names.heading(metric, at) for metric, at in metrics)
    seeds = ", ".join(map(str, plan.seeds))
    compared = any(outcome.cell.reported for outcome in outcomes)
    verdict = (
        "; equal, if its whole 95 % interval is within two points (Student's t; all runs are taken "
        "to spread alike), different, if it is outside"
    )
    brackets = "; in brackets: the reported number and ours minus it" + verdict * (plan.scale == 1)
    yield f"{what}. Ours: mean ± standard error over seeds ({seeds}){brackets * compared}."
    if plan.scale != 1:
        whole = (
            " The reported numbers are those of the whole experiment, and are shown for "
            "orientation only."
        )
        share = "the share of the rounds and of the data that was used."
        yield f"Scale {plan.scale:g}: {share}{whole * compared}"
    rows: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        for run in outcome.runs.values():
            if (point := run.tested_at(outcome.cell.metric)) is not None:
                rows.setdefault(point, {})[outcome.cell.row] = None
    if len(rows) > 1:
        points = "; ".join(f"{point}: {', '.join(labels)}" for point, labels in rows.items())
        yield f"Personal models were tested at different points ({points})."


def shortened(plan: TablePlan) -> str:
    """Return the addition to the caption of a shortened experiment; empty for a full one."""
    return "" if plan.scale == 1 else f", at scale {plan.scale:g}"


def _named(option: tuple[str, str]) -> str:
    """Return an option's label, preceded by the axis's name if it is a number."""
    axis, label = option
    return f"{axis} {label}" if label.lstrip("-.")[:1].isdigit() else label


def _record(plan: TablePlan, outcome: CellOutcome) -> Record:
    cell, ours = outcome.cell, outcome.ours
    interval = None if ours is None else ours.interval
    reported = cell.reported
    return {
        "row": cell.row,
        **dict(cell.column),
        "metric": f"{cell.metric}/{cell.at}",
        "scale": plan.scale,
        "seeds": " ".join(map(str, outcome.runs)),
        "ours": None if ours is None else ours.mean,
        "ours/stderr": None if ours is None else ours.error,
        "ours/low": interval and interval[0],
        "ours/high": interval and interval[1],
        "reported": None if reported is None else reported.value,
        "reported/spread": None if reported is None else reported.error,
        "difference": outcome.difference,
        "verdict": outcome.verdict,
        "trouble": "; ".join(outcome.trouble),
    }
