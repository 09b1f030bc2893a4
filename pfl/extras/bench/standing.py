"""Ranks, paired tests and their power from a leaderboard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pfl.extras.bench.hashed import Row
from pfl.extras.bench.rows import LABELS, TUNED_REFERENCE, Leaderboard
from pfl.results.files import Floats
from pfl.results.paired import Paired, adjusted, paired
from pfl.results.statistics import CONFIDENCE, margin

# Level of the tests.
LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True)
class Standing:
    """One line of the table.

    Attributes:
        row: The row.
        tuned: (seeds,) test scores at the chosen settings, NaN where a run failed.
        default: The same at the method's defaults; empty if the row has none.
        rank: Mean rank over the seeds, 1 for the best.
        test: Paired test against tuned FedAvg-FT, adjusted for all methods; ``None`` for itself or
            without scores.
        visible: Smallest mean difference from tuned FedAvg-FT that is significant among all
            methods, whatever the other tests' outcome; ``None`` without a test.
    """

    row: Row
    tuned: Floats
    default: Floats
    rank: float
    test: Paired | None
    visible: float | None

    @property
    def label(self) -> str:
        """The method's name in tables."""
        name = str(self.row["method"])
        return LABELS.get(name, name)


def standings(board: Leaderboard) -> list[Standing]:
    """Return the lines of a leaderboard, best mean rank first."""
    names, more = list(board.rows), bool(board.task["more"])
    scores = {name: scores_of(board, name, "tuned") for name in names}
    ranks = ranked(np.array([*scores.values()]), more)
    tests = _tests(scores, more)
    lines = (
        Standing(
            row=board.rows[name],
            tuned=scores[name],
            default=scores_of(board, name, "default"),
            rank=float(ranks[number].mean()),
            test=tests.get(name),
            visible=visible(tests[name], len(tests)) if name in tests else None,
        )
        for number, name in enumerate(names)
    )
    return sorted(lines, key=lambda one: (one.rank, one.label))


def scores_of(
    board: Leaderboard, name: str, which: str, score: str | None = None, at: str = "best_by_val"
) -> Floats:
    """Return a row's (seeds,) test scores at the ``tuned`` or the ``default`` settings.

    ``equal_rounds`` are the defaults with the reference's number of rounds. ``score`` defaults to
    the task's own; ``at`` is ``best_by_val`` or ``last``.
    """
    wanted = score or str(board.task["score"])
    row = board.rows[name]
    runs = row.get(which, [])
    if which == "tuned" and not runs:  # all trials failed
        return np.full(row["budget"]["seeds"], np.nan)
    return np.array([run.get(at, {}).get(wanted, np.nan) for run in runs], np.float64)


def ranked(scores: Floats, more: bool) -> Floats:
    """Return (methods, seeds) ranks, from 1 for the best; ties share their mean rank.

    NaN ranks last.

    Example:
        >>> ranked(np.array([[0.9], [0.8], [0.9]]), more=True).tolist()
        [[1.5], [3.0], [1.5]]
    """
    losses = np.where(np.isnan(scores), np.inf, -scores if more else scores)
    ranks: Floats = stats.rankdata(losses, axis=0)
    return ranks


def visible(test: Paired, tests: int, seeds: int | None = None) -> float:
    """Return the smallest mean difference that is significant among ``tests`` (Holm's first step).

    Args:
        test: One of the tests.
        tests: Number of tests that are adjusted together.
        seeds: Hypothetical number of seeds with an equal spread; ``None`` for the actual one.
    """
    pairs = seeds or test.pairs
    spread = (test.high - test.low) / (2 * margin(1 / math.sqrt(test.pairs), test.pairs - 1))
    return critical(tests, pairs) * spread / math.sqrt(pairs)


def critical(tests: int, seeds: int) -> float:
    """Return the t that the most significant of several paired tests must exceed.

    Example:
        >>> round(critical(36, 3), 1), round(critical(36, 10), 1)
        (26.8, 4.5)
    """
    return float(stats.t.ppf(1 - LEVEL / (2 * tests), seeds - 1))


def _tests(scores: Mapping[str, Floats], more: bool) -> dict[str, Paired]:
    """Test every method against tuned FedAvg-FT over seeds, with Holm's adjustment."""
    if TUNED_REFERENCE not in scores:
        return {}
    names = [name for name in scores if name != TUNED_REFERENCE]
    sign = 1 if more else -1
    reference = scores[TUNED_REFERENCE]
    whole = [paired(sign * scores[name], sign * reference) for name in names]
    tested = zip(names, adjusted(whole), strict=True)
    return {name: test for name, test in tested if test is not None}
