"""The scores of models that have learnt nothing from their inputs."""

from __future__ import annotations

import numpy as np

from pfl.results import names
from pfl.results.runs import RunFolder

# Factor of the better of these scores below which a run is said to have learnt nothing.
_MARGIN = 1.05


def levels(run: RunFolder, metric: str) -> dict[str, float]:
    """Return the accuracy of guessing, and of always predicting the most frequent training label.

    A personal model predicts its client's most frequent label, other models that of all clients.
    Shares are those of training samples. Other scores have no levels.
    """
    counts = run.label_counts
    if metric.rpartition("/")[2] != "acc" or counts is None or not counts.any():
        return {}
    held = counts[counts.sum(1) > 0]
    shares = held / held.sum(1, keepdims=True)
    overall = counts.sum(0) / counts.sum()
    if metric.startswith("test/personal"):
        frequent = {"each client's most frequent label": shares.max(1).mean()}
    elif names.is_pooled(metric):
        frequent = {"most frequent label": overall.max()}
    else:
        frequent = {"most frequent label": shares[:, overall.argmax()].mean()}
    return {f"chance, {counts.shape[1]} classes": 1 / counts.shape[1], **frequent}


def sentence(run: RunFolder, metric: str) -> str:
    """Describe the scores of models that have learnt nothing, and whether the run beats them.

    It is empty if they are unknown.
    """
    found = levels(run, metric)
    if not found:
        return ""
    said = " and ".join(f"{100 * level:.2f} % ({what})" for what, level in found.items())
    last = run.values(metric, run.evaluated(metric)[-1:])[0]
    fails = np.isnan(last) or last <= _MARGIN * max(found.values())
    verdict = " This run is hardly better: it has learnt nothing yet." if fails else ""
    return f"Without learning, {names.described(metric)}, would be {said}.{verdict}"
