"""The tables of a comparison."""

from __future__ import annotations

from rich.filesize import decimal

from pfl.core.sheet import Sheet
from pfl.federation.evaluation import Shown
from pfl.results import names
from pfl.results.compare import PAIRS, Comparison, Pairs
from pfl.results.statistics import NONE, Estimate

_COSTS = ("bytes", "seconds")


def sheets(comparison: Comparison) -> list[Sheet]:
    """Return a table of scores and costs, those of evaluations, and one for each kind of test."""
    measured = [sheet for one in names.shown() if (sheet := _measured(comparison, one)).columns[1:]]
    tested = [_tested(comparison, pairs) for pairs in PAIRS if comparison.tests[pairs]]
    return [_scores(comparison), *measured, *tested]


def _names(comparison: Comparison) -> list[str]:
    """Return the names of all numbers, in order."""
    rows = comparison.estimates.values()
    return [*dict.fromkeys(name for row in rows for name in row)]


def _scores(comparison: Comparison) -> Sheet:
    rows = comparison.estimates.values()
    apart = (*_COSTS, *(f"{one.name}/" for one in names.shown()))
    columns = [name for name in _names(comparison) if not name.startswith(apart)]
    heads = {name: _heading(name) for name in columns}
    notes = [names.WORDS["column_notes"].get(head, "") for head in heads.values()]
    about = names.WORDS["comparison_notes"]
    cells = [
        [
            str(record["setting"]),
            str(record["runs"]),
            str(record["rounds"]),
            *(_score(row.get(name), name) for name in columns),
            decimal(int(row["bytes"].mean)),
            row["seconds"].text(digits=1),
        ]
        for record, row in zip(comparison.records, rows, strict=True)
    ]
    return Sheet(
        title=names.heading(comparison.metric, comparison.at),
        columns=[
            *("setting", "runs", "rounds"),
            *(head + " (%)" * names.in_per_cent(name) for name, head in heads.items()),
            *("moved", "seconds"),
        ],
        rows=cells,
        notes=[
            *(f"Warning: {line}." for line in comparison.warnings),
            _note(comparison, about["scores"], *notes, about["costs"]),
        ],
        records=comparison.records,
        optional=("rounds", "seconds", "ECE (%)", "runs", "moved", "spread (%)", "spread"),
    )


def _heading(metric: str) -> str:
    name = metric.rpartition("/")[2]
    return names.WORDS["columns"].get(names.parted(name)[1] or name, names.score(metric))


def _measured(comparison: Comparison, shown: Shown) -> Sheet:
    """Return the table of an evaluation; (%) is in its title if all its numbers have this form."""
    prefix, metric = f"{shown.name}/", comparison.metric
    columns = [name for name in _names(comparison) if name.startswith(prefix)]
    forms = {name: "" if name[len(prefix) :] in shown.plain else metric for name in columns}
    per_cent = {name: " (%)" * names.in_per_cent(form) for name, form in forms.items()}
    (title, *mixed) = {*per_cent.values()} or {""}
    heads = [name[len(prefix) :] + per_cent[name] * bool(mixed) for name in columns]
    return Sheet(
        title=shown.title + title * (not mixed),
        columns=["setting", *heads],
        rows=[
            [label, *(_score(row.get(name), form) for name, form in forms.items())]
            for label, row in comparison.estimates.items()
        ],
        notes=[shown.note],
    )


def _score(estimate: Estimate | None, metric: str) -> str:
    return NONE if estimate is None else estimate.text(*names.scale(metric))


def _tested(comparison: Comparison, pairs: Pairs) -> Sheet:
    scale, digits = names.scale(comparison.metric)
    rows = [
        [
            label,
            f"{test.positive}/{test.negative}/{test.pairs - test.positive - test.negative}",
            f"{scale * test.difference:+.{digits}f}",
            f"{scale * test.low:+.{digits}f} to {scale * test.high:+.{digits}f}",
            f"{test.effect:+.2f}",
            _p_text(test.p),
            _p_text(test.p_holm),
        ]
        for label, test in comparison.tests[pairs].items()
    ]
    unit = " (points)" if scale == 100 else ""
    return Sheet(
        title=f"{names.WORDS['comparison'][pairs]}, against {comparison.reference}",
        columns=[
            *("setting", "+/-/=", f"difference{unit}", "95% interval"),
            *("Cohen's d", "p", "p (Holm)"),
        ],
        rows=rows,
        notes=[_note(comparison, names.WORDS["comparison_notes"][pairs])],
        optional=("Cohen's d", "p"),
    )


def _note(comparison: Comparison, *sentences: str) -> str:
    """Join sentences about a score; for most, more is better, so only the opposite is stated."""
    return " ".join(filter(None, ("Less is better." * comparison.less, *sentences)))


def _p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"
