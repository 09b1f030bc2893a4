"""Summaries of a run: the kinds of numbers that papers report, each with its label.

A paper may report the last round, the mean of the last ten, or the best round. The best round may
be chosen by validation data or, as often happens without being stated, on the test data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

KINDS = ("last", "mean_last10", "best_by_val", "best_on_test")
# Endings of the means of a score over some clients.
MEANS = ("_weighted", "_worst10")
# Scores of a run that did not record them, the main score first; True if more is better.
SCORES: Mapping[str, bool] = {"acc": True}


def summarise(
    history: Sequence[Mapping[str, float]], scores: Mapping[str, bool] = SCORES
) -> dict[str, float]:
    """Summarise every test metric of the evaluated rounds, as ``<metric>/<kind>``.

    ``last`` is the value of the last evaluated round; ``mean_last10`` the mean over the evaluated
    rounds among the last ten; ``best_by_val`` the value of the round with the best personal
    validation score (missing without validation data); ``best_on_test`` the best score over the
    rounds, selected on the test data. The score is the first of ``scores``: in classification, the
    accuracy.

    A round in which a client had no score (NaN) counts as evaluated, but never as the best.

    Args:
        history: One row for each round.
        scores: Names of the scores, the main score first; ``True`` if more is better.
    """
    name, more = next(iter(scores.items()))
    by = f"val/personal/{name}"
    rows = [row for row in history if any(key.startswith("test/") for key in row)]
    if not rows:
        return {}
    last = rows[-1]
    recent = [row for row in rows if row["round"] > last["round"] - 10]
    chosen = _best(rows, by, more)
    summary: dict[str, float] = {}
    for key in (key for key in last if key.startswith("test/")):
        summary[f"{key}/last"] = last[key]
        # Rounds in which only some clients are tested may lack a group's scores.
        values = [row[key] for row in recent if key in row]
        summary[f"{key}/mean_last10"] = sum(values) / len(values)
        if chosen is not None and key in chosen:
            summary[f"{key}/best_by_val"] = chosen[key]
        if is_score(key, name):
            best = _best(rows, key, more)
            summary[f"{key}/best_on_test"] = math.nan if best is None else best[key]
    return summary


def is_score(metric: str, name: str) -> bool:
    """Return ``True`` if a metric is a score, or its mean over some clients."""
    last = metric.rpartition("/")[2].partition("@")[0]
    return last in (name, *(name + ending for ending in MEANS))


def _best(rows: Sequence[Mapping[str, float]], key: str, more: bool) -> Mapping[str, float] | None:
    """Return the first row with the best number of a metric; ``None`` if no row has a number."""
    scored = [row for row in rows if not math.isnan(row.get(key, math.nan))]
    return (max if more else min)(scored, key=lambda row: row[key], default=None)
