"""Summaries of a run: the numbers that papers report, kept apart and labelled.

A paper may report the last round, the mean of the last ten, or the best round; the best may be
chosen by validation data or, as is often done and ought to be said, on the test data themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

KINDS = ("last", "mean_last10", "best_by_val", "best_on_test")


def summarise(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Summarise every test metric of the evaluated rounds, as ``<metric>/<kind>``.

    ``last`` is the last evaluated round; ``mean_last10`` the mean over those among the last ten
    rounds that were evaluated; ``best_by_val`` the test value at the round of best personal
    validation accuracy (missing without validation data); ``best_on_test`` the largest accuracy
    over the rounds, selected on the test data (accuracies only).
    """
    rows = [row for row in history if any(key.startswith("test/") for key in row)]
    if not rows:
        return {}
    last = rows[-1]
    recent = [row for row in rows if row["round"] > last["round"] - 10]
    validated = [row for row in rows if "val/personal/acc" in row]
    chosen = max(validated, key=lambda row: row["val/personal/acc"]) if validated else None
    summary: dict[str, float] = {}
    for key in (key for key in last if key.startswith("test/")):
        summary[f"{key}/last"] = last[key]
        summary[f"{key}/mean_last10"] = sum(row[key] for row in recent) / len(recent)
        if chosen is not None:
            summary[f"{key}/best_by_val"] = chosen[key]
        if key.split("/")[-1].startswith("acc") and not key.endswith("_std"):
            summary[f"{key}/best_on_test"] = max(row[key] for row in rows)
    return summary
