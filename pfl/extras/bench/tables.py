"""The tables of a leaderboard, and a verdict in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pfl.core.sheet import Sheet
from pfl.extras.bench.hashed import Row
from pfl.extras.bench.rows import LABELS, MAJORITY, TUNED_REFERENCE, Leaderboard
from pfl.extras.bench.standing import (
    LEVEL,
    Standing,
    critical,
    scores_of,
    standings,
    visible,
)
from pfl.results import names
from pfl.results.files import Floats
from pfl.results.paired import Paired
from pfl.results.statistics import NONE, Estimate

# Columns of some tasks or methods: the runs, the name of the score, the round it is read at.
_FURTHER = {
    "equal rounds": ("equal_rounds", "{}", "best_by_val"),
    "worst tenth": ("tuned", "{}_worst10", "best_by_val"),
    "joined": ("tuned", "unseen_joined/{}", "last"),
}
# Number of seeds to which the verdict extrapolates.
_MORE_SEEDS = 10


def sheets(board: Leaderboard, seconds: Mapping[str, float]) -> list[Sheet]:
    """Return the ranking with its verdict, the chosen settings, and their cost."""
    lines = standings(board)
    first = ranking(board, lines)
    notes = [*first.notes, *verdict(board, lines), *map(str, board.task["notes"])]
    return [replace(first, notes=notes), choices(lines), costs(lines, seconds)]


def ranking(board: Leaderboard, lines: Sequence[Standing]) -> Sheet:
    """Return the table of all methods, best mean rank first."""
    score = str(board.task["score"])
    reference = LABELS[TUNED_REFERENCE]
    scale, digits = names.scale(f"test/personal/{score}")
    means = _means(board, lines)
    columns = ["method", "mean rank", *means, f"less {reference}", "seen from", "p (Holm)"]
    rows = []
    for number, one in enumerate(lines):
        tested = [NONE] * 3
        if one.test is not None and one.visible is not None:
            sign = 1 if board.task["more"] else -1
            half = scale * (one.test.high - one.test.low) / 2
            difference = f"{scale * sign * one.test.difference:+.{digits}f} ± {half:.{digits}f}"
            tested = [difference, f"{scale * one.visible:.{digits}f}", f"{one.test.p_holm:.3f}"]
        rows.append(
            [
                *(one.label, f"{one.rank:.2f}"),
                *(_mean(column[number], scale, digits) for column in means.values()),
                *tested,
            ]
        )
    return Sheet(str(board.task["caption"]), columns, rows)


def _means(board: Leaderboard, lines: Sequence[Standing]) -> dict[str, list[Floats]]:
    """Return the columns of scores that any line has: (seeds,) values for each line."""
    columns = {"tuned": [one.tuned for one in lines], "default": [one.default for one in lines]}
    for column, (which, ending, at) in _FURTHER.items():
        name = ending.format(board.task["score"])
        scores = [scores_of(board, str(one.row["method"]), which, name, at) for one in lines]
        if any(np.isfinite(values).any() for values in scores):
            # The majority class has no training that clients could join: this is not a failure.
            columns[column] = [
                values[: 0 if one.row["method"] == MAJORITY and np.isnan(values).all() else None]
                for one, values in zip(lines, scores, strict=True)
            ]
    return columns


def choices(lines: Sequence[Standing]) -> Sheet:
    """Return the chosen settings of each method, and those at an edge of the search."""
    rows = []
    for one in lines:
        row = one.row
        if row["method"] == MAJORITY:
            continue
        if row["chosen"] is None:
            why = str(row["trials"][0]["failed"])
            rows.append([one.label, NONE, f"all trials failed: {why}", *[NONE] * 4])
            continue
        best = row["trials"][row["chosen"]]
        edges = ", ".join(f"{_short(key)} ({end})" for key, end in row["edges"].items())
        failed = sum("failed" in trial for trial in row["trials"])
        rows.append(
            [
                one.label,
                "default" if row["chosen"] == 0 else str(row["chosen"] + 1),
                ", ".join(f"{_short(key)} {value}" for key, value in best["settings"].items()),
                edges or NONE,
                str(best["rounds"]),
                str(failed),
                "-" if row["own_dimensions"] else "shared dimensions only",
            ]
        )
    columns = ["method", "trial", "settings", "at an edge", "rounds", "failed trials", "space"]
    return Sheet("Chosen settings", columns, rows)


def costs(lines: Sequence[Standing], seconds: Mapping[str, float]) -> Sheet:
    """Return the cost of the chosen settings, and the seconds of all runs of a method."""
    rows = []
    for one in lines:
        row = one.row
        if row["method"] == MAJORITY or row["chosen"] is None:
            continue
        spent = seconds.get(str(row["method"]))
        rows.append(
            [
                one.label,
                f"{row['trials'][row['chosen']]['samples']:,}",
                *(_megabytes(row, key) for key in ("bytes_down", "bytes_up")),
                NONE if spent is None else f"{spent:,.0f}",
            ]
        )
    columns = ["method", "processed samples", "MB down", "MB up", "seconds, all runs"]
    return Sheet("Cost", columns, rows)


def verdict(board: Leaderboard, lines: Sequence[Standing]) -> list[str]:
    """Return sentences on who wins, who beats tuned FedAvg-FT, and the power of the tests."""
    trained = [one for one in lines if one.row["method"] != MAJORITY]
    best = trained[0]
    sign = 1 if board.task["more"] else -1
    by_default = max(trained, key=lambda one: _or_worst(sign * one.default))
    said = [f"Best mean rank: {best.label}. Best by default settings alone: {by_default.label}."]
    tests = [(one.label, one.test) for one in trained if one.test is not None]
    groups: dict[str, Callable[[Paired], bool]] = {
        f"Better than tuned {LABELS[TUNED_REFERENCE]} (Holm, 5 %)": lambda test: (
            test.p_holm < LEVEL and test.difference > 0
        ),
        "Worse": lambda test: test.p_holm < LEVEL and test.difference < 0,
        "Better mean, without regard to chance": lambda test: test.difference > 0,
    }
    if tests:
        named = {
            what: [label for label, test in tests if is_in(test)] for what, is_in in groups.items()
        }
        said.append(" ".join(f"{what}: {', '.join(of) or 'nobody'}." for what, of in named.items()))
        said.append(_power(board, lines))
    return said


def _power(board: Leaderboard, lines: Sequence[Standing]) -> str:
    """Return sentences on the significant difference, with these seeds and with more."""
    tests = [one.test for one in lines if one.test is not None]
    scale, digits = names.scale(f"test/personal/{board.task['score']}")
    unit = " points" if scale == 100 else ""

    def seen(seeds: int) -> str:
        typical = scale * np.median([visible(test, len(tests), seeds) for test in tests])
        return f"from {typical:.{digits}f}{unit} on (t above {critical(len(tests), seeds):.1f})"

    seeds = tests[0].pairs
    now = (
        f"What {seeds} seeds can see: in the median over the methods, a difference from tuned "
        f"{LABELS[TUNED_REFERENCE]} is significant among {len(tests)} tests {seen(seeds)}."
    )
    if seeds >= _MORE_SEEDS:
        return now
    return f"{now} {_MORE_SEEDS} seeds that spread as much would see it {seen(_MORE_SEEDS)}."


def _or_worst(values: Floats) -> float:
    """Return the mean, or negative infinity if a run failed or there is none."""
    mean = float(np.mean(values)) if len(values) else np.nan
    return -np.inf if np.isnan(mean) else mean


def _mean(values: Floats, scale: int, digits: int) -> str:
    if not len(values):
        return NONE
    if np.isnan(values).any():
        return "failed"
    return Estimate.of(values).text(scale, digits)


def _megabytes(row: Row, key: str) -> str:
    sizes = [run[key] for run in row["tuned"] if key in run]
    return f"{np.mean(sizes) / 1e6:,.2f}" if sizes else NONE


def _short(key: str) -> str:
    return key.rpartition(".")[2]
