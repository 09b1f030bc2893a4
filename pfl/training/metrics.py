"""Scores of one model on one split, and their summary over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("acc", "loss", "f1", "ece")
BINS = 15


def scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (4,) accuracy, mean cross-entropy, macro F1 and calibration error, as :data:`NAMES`.

    Macro F1 averages over the classes that are present or predicted. The calibration error is the
    expected one, over 15 bins of confidence. All are of single precision, or double for logits of
    that.

    Args:
        logits: (n, C), n >= 1.
        labels: (n,).
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    predicted = logits.argmax(-1)
    right = (predicted == labels).to(logits.dtype)
    # Non-finite rows count as a uniform guess.
    classes = logits.shape[-1]
    confidence, guess = logits.softmax(-1).nan_to_num(1.0 / classes).max(-1)
    return torch.stack(
        [
            right.mean(),
            F.cross_entropy(logits, labels),
            _macro_f1(predicted, labels, right, classes),
            _calibration_error(confidence, (guess == labels).to(logits.dtype)),
        ]
    )


def _macro_f1(predicted: Tensor, labels: Tensor, right: Tensor, classes: int) -> Tensor:
    """Return the mean F1 score of the classes that are present or predicted."""
    ones = torch.ones_like(right)
    found = _sums(ones, predicted, classes) + _sums(ones, labels, classes)
    present = (found > 0).to(right.dtype)
    f1 = (2 * _sums(right, labels, classes) / found).nan_to_num()
    return (f1 / present.sum()).sum()


def _calibration_error(confidence: Tensor, right: Tensor) -> Tensor:
    """Return the expected calibration error: mean distance of accuracy and confidence in bins.

    Args:
        confidence: (n,) largest probabilities.
        right: (n,) 1 where its class is the label, else 0.
    """
    edges = torch.linspace(0, 1, BINS + 1, dtype=confidence.dtype, device=confidence.device)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    accuracy, sureness, count = (
        _sums(values, bins, BINS + 1) for values in (right, confidence, torch.ones_like(right))
    )
    gap = (accuracy / count).nan_to_num() - (sureness / count).nan_to_num()
    return (gap.abs() * (count / count.sum())).sum()


def _sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (count,) sums of (n,) values by group."""
    return values.new_zeros(count).scatter_add_(0, groups, values)


def over_clients(
    rows: Sequence[Mapping[str, float]],
    sizes: Sequence[int],
    prefix: str,
    groups: Sequence[str] = (),
) -> dict[str, float]:
    """Summarise clients' scores over clients.

    Args:
        rows: One mapping of :data:`NAMES` a client.
        sizes: Samples that each row was computed on; clients of size zero are left out.
        prefix: For instance ``"test/personal"``.
        groups: The label of each client's group, where clients fall into groups.

    Returns:
        ``<prefix>/acc`` (mean over clients), ``acc_weighted`` (by samples), ``acc_worst10`` (mean
        of the worst tenth of the clients, at least one), ``acc_std`` (population standard deviation
        over clients), the means of the other scores, and ``acc@<label>`` (mean over the clients of
        a group that has any). Empty if no client has samples.
    """
    pairs = [(row, size) for row, size in zip(rows, sizes, strict=True) if size > 0]
    if not pairs:
        return {}
    table = torch.tensor([[row[name] for name in NAMES] for row, _ in pairs], dtype=torch.float64)
    weights = torch.tensor([size for _, size in pairs], dtype=torch.float64)
    summary = dict(zip((f"{prefix}/{name}" for name in NAMES), table.mean(0).tolist(), strict=True))
    accuracy = table[:, 0]
    worst = accuracy.sort().values[: math.ceil(len(accuracy) / 10)]
    summary[f"{prefix}/acc_weighted"] = float((accuracy * weights).sum() / weights.sum())
    summary[f"{prefix}/acc_worst10"] = float(worst.mean())
    summary[f"{prefix}/acc_std"] = float(accuracy.std(correction=0))
    labels = [label for label, size in zip(groups, sizes, strict=False) if size > 0]
    for label in dict.fromkeys(labels):
        members = torch.tensor([own == label for own in labels])
        summary[f"{prefix}/acc@{label}"] = float(accuracy[members].mean())
    return summary
