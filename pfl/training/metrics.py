"""Scores of one model on one split, and their summary over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_calibration_error,
    multiclass_f1_score,
)

NAMES = ("acc", "loss", "f1", "ece")


def scores(logits: Tensor, labels: Tensor) -> Tensor:
    """(4,) accuracy, mean cross-entropy, macro F1 and calibration error, as :data:`NAMES` orders.

    Macro F1 averages over the classes that are present or predicted. The calibration error is the
    expected one, over 15 bins of confidence.

    Args:
        logits: (n, C), n >= 1.
        labels: (n,).
    """
    logits = logits.float()
    classes = logits.shape[-1]
    probabilities = logits.softmax(-1)
    predicted = logits.argmax(-1)
    return torch.stack(
        [
            (predicted == labels).float().mean(),
            F.cross_entropy(logits, labels),
            multiclass_f1_score(predicted, labels, classes, average="macro", validate_args=False),
            multiclass_calibration_error(
                # Non-finite rows would be refused; they count as a uniform guess.
                probabilities.nan_to_num(1.0 / classes),
                labels,
                classes,
                validate_args=False,
            ),
        ]
    )


def over_clients(
    rows: Sequence[Mapping[str, float]],
    sizes: Sequence[int],
    prefix: str,
    groups: Sequence[str] = (),
) -> dict[str, float]:
    """Summaries over clients of each client's scores.

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
