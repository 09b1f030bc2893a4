"""Sums by model and group, and the scores that tasks compute from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

BINS = 15

# (n,) values and (n,) groups -> (K, groups) sums, by model and group.
GroupSums: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]


def wide(values: Tensor) -> Tensor:
    """Return values in single precision or, if they are float64, unchanged."""
    return values if values.dtype == torch.float64 else values.float()


def exact(values: Tensor) -> Tensor:
    """Return values in double precision on the CPU, as some devices lack it."""
    return values.detach().cpu().double()


def defined(scores: Tensor, loss: Tensor) -> Tensor:
    """Return scores, all NaN where the loss is NaN: then some output is not defined."""
    return torch.where(loss.isnan(), loss, scores)


def macro_f1(hits: Tensor, held: Tensor) -> Tensor:
    """Return (K,) mean F1 scores of the classes that are present or predicted.

    Args:
        hits: (K, C) numbers of correctly predicted samples of each model and class.
        held: (K, C) numbers of samples of the class plus samples predicted to be of it.
    """
    present = (held > 0).to(hits.dtype)
    f1 = (2 * hits / held).nan_to_num()
    return (f1 / present.sum(1, keepdim=True)).sum(1)


def calibration_error(tally: GroupSums, confidence: Tensor, right: Tensor) -> Tensor:
    """Return (K,) expected calibration errors: mean gap between accuracy and confidence in bins.

    Args:
        tally: Sums values by model and bin.
        confidence: (n,) largest probabilities.
        right: (n,) 1 if the most probable class is the label, else 0.
    """
    edges = torch.linspace(0, 1, BINS + 1, dtype=confidence.dtype, device=confidence.device)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    accuracy, sureness, count = (
        tally(values, bins, BINS + 1) for values in (right, confidence, torch.ones_like(right))
    )
    gap = (accuracy / count).nan_to_num() - (sureness / count).nan_to_num()
    return (gap.abs() * (count / count.sum(1, keepdim=True))).sum(1)


def group_sums(owner: Tensor, models: int, values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (models, count) sums of (n,) values by model and group."""
    sums = values.new_zeros(models * count)
    return sums.scatter_add_(0, owner * count + groups, values).view(models, count)
