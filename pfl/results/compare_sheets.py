"""The tables of a comparison."""

from __future__ import annotations

from collections.abc import Mapping

from rich.filesize import decimal

from pfl.results import names
from pfl.results.compare import PAIRS, Comparison, Pairs
from pfl.results.paired import Paired
from pfl.results.sheets import Record, Sheet
from pfl.results.statistics import NONE, Estimate
from pfl.results.words import WORDS


def sheets(comparison: Comparison) -> list[Sheet]:
    """Return a table of scores and costs, and one for each kind of test that has pairs."""
    made = [_scores(comparison)]
    if any(setting.later for setting in comparison.settings):
        made.append(_later(comparison))
    for pairs in PAIRS:
        if tests := {s.label: s.tests[pairs] for s in comparison.settings if pairs in s.tests}:
            made.append(_tested(comparison, pairs, tests))
    return made


def _scores(comparison: Comparison) -> Sheet:
    rows = comparison.settings
    columns = list(dict.fromkeys(name for row in rows for name in row.scores))
    heads = {name: _heading(name) for name in columns}
    told = [WORDS["column_notes"].get(head, "") for head in heads.values()]
    about = WORDS["comparison_notes"]
    cells = [
        [
            row.label,
            str(row.runs),
            str(row.rounds),
            *(_score(row.scores.get(name), name) for name in columns),
            decimal(int(row.bytes.mean)),
            row.seconds.text(digits=1),
        ]
        for row in rows
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
            _note(comparison, about["scores"], *told, about["costs"]),
        ],
        records=_records(comparison),
        optional=("rounds", "seconds", "ECE (%)", "runs", "moved", "spread (%)", "spread"),
    )


def _heading(metric: str) -> str:
    name = metric.rpartition("/")[2]
    return WORDS["columns"].get(names.parted(name)[1] or name, names.score(metric))


def _later(comparison: Comparison) -> Sheet:
    """Return the table of clients that joined after the last round."""
    rows = comparison.settings
    heads = list(dict.fromkeys(heading for row in rows for heading in row.later))
    in_per_cent = names.in_per_cent(comparison.metric)
    # Shares and differences are shown as the score is.
    scores = [[_score(row.later.get(head), comparison.metric) for head in heads] for row in rows]
    cells = [[row.label, *values] for row, values in zip(rows, scores, strict=True)]
    return Sheet(
        title="Clients that join later" + " (%)" * in_per_cent,
        columns=["setting", *heads],
        rows=cells,
        notes=[WORDS["comparison_notes"]["later"]],
    )


def _score(estimate: Estimate | None, metric: str) -> str:
    return NONE if estimate is None else estimate.text(*names.scale(metric))


def _tested(comparison: Comparison, pairs: Pairs, tests: Mapping[str, Paired]) -> Sheet:
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
        for label, test in tests.items()
    ]
    unit = " (points)" if scale == 100 else ""
    return Sheet(
        title=f"{WORDS['comparison'][pairs]}, against {comparison.reference}",
        columns=[
            *("setting", "+/-/=", f"difference{unit}", "95% interval"),
            *("Cohen's d", "p", "p (Holm)"),
        ],
        rows=rows,
        notes=[_note(comparison, WORDS["comparison_notes"][pairs])],
        optional=("Cohen's d", "p"),
    )


def _note(comparison: Comparison, *sentences: str) -> str:
    """Join sentences about a score; of most scores more is better, so only the other is said."""
    return " ".join(filter(None, ("Less is better." * comparison.less, *sentences)))


def _p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _records(comparison: Comparison) -> list[Record]:
    """Return one mapping for each setting, with all numbers unrounded."""
    records: list[Record] = []
    for row in comparison.settings:
        record: dict[str, str | float | int | None] = {
            "setting": row.label,
            "at": comparison.at,
            "tested": row.tested,
            "runs": row.runs,
            "rounds": row.rounds,
        }
        costs = {
            "bytes": row.bytes,
            "seconds": row.seconds,
            **{f"later/{heading}": e for heading, e in row.later.items()},
        }
        for name, estimate in {**row.scores, **costs}.items():
            record |= {name: estimate.mean, f"{name}/stderr": estimate.error}
        for pairs, test in row.tests.items():
            record |= {f"{pairs}/{key}": value for key, value in vars(test).items()}
        records.append(record)
    return records
