"""Tasks: the loss, the shape of outputs, and the scores of a kind of prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Task(ABC):
    """A kind of prediction, which the data choose.

    A method asks it for its loss, the loop for its scores. It has no state: tasks with equal
    options are equal.

    Attributes:
        loss_name: Of the loss among a step's terms.
        scores_better: The scores of a model by name, the one that it is judged by first, and
            whether more is better.
        has_classes: Whether each sample has one class of several, which methods may count and
            partitions may divide by.
    """

    loss_name: ClassVar[str]
    scores_better: ClassVar[Mapping[str, bool]]
    has_classes: ClassVar[bool] = False

    @abstractmethod
    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) loss of each sample.

        Args:
            outputs: (B, D) of the network.
            y: (B, ...) targets, as the data give them.
        """

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss of the real samples; runs under ``torch.func.vmap``.

        Args:
            outputs: (B, D) of the network.
            y: (B, ...) targets.
            weight: (B,) one for a real sample and zero for padding; ``None`` where all are real.
        """
        values = self.sample_losses(outputs, y)
        if weight is None:
            return values.mean()
        return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)

    @abstractmethod
    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return one number for each of ``scores_better``.

        Args:
            outputs: (n, D) of all samples of a split, n at least 1.
            y: (n, ...) targets.
        """

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return what metrics of torchmetrics take: probabilities, or values."""

    @abstractmethod
    def targets(self, y: Tensor) -> Tensor:
        """Return the targets as metrics of torchmetrics take them."""

    @abstractmethod
    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return what a metric of torchmetrics may have to know, by the names that they use.

        Args:
            outputs: D, outputs of the network.
        """


class Classification(Task):
    """One of C classes: (n,) integer labels, (n, C) logits, cross-entropy.

    Scores are accuracy, cross-entropy, macro F1 over the classes that are present or predicted, and
    the expected calibration error over 15 bins of confidence.
    """

    loss_name = "ce"
    scores_better = {"acc": True, "loss": False, "f1": True, "ece": False}  # noqa: RUF012
    has_classes = True

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) cross-entropies."""
        return F.cross_entropy(outputs, y, reduction="none")

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy."""
        # Not the mean of sample_losses, which rounds otherwise.
        return F.cross_entropy(outputs, y) if weight is None else super().loss(outputs, y, weight)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (4,) scores."""
        logits = wide(outputs)
        predicted = logits.argmax(-1)
        right = (predicted == y).to(logits.dtype)
        # Rows that are not finite count as a uniform guess.
        classes = logits.shape[-1]
        confidence, guess = logits.softmax(-1).nan_to_num(1.0 / classes).max(-1)
        return torch.stack(
            [
                right.mean(),
                F.cross_entropy(logits, y),
                _macro_f1(predicted, y, right, classes),
                _calibration_error(confidence, (guess == y).to(logits.dtype)),
            ]
        )

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, C) probabilities."""
        return wide(outputs).softmax(-1)

    def targets(self, y: Tensor) -> Tensor:
        """Return the (n,) labels."""
        return y

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the task and the number of classes."""
        return {"task": "multiclass", "num_classes": outputs}


class MultiLabel(Task):
    """Any of L labels: (n, L) targets of zeros and ones, (n, L) logits, binary cross-entropy.

    Scores are the share of labels that are right, the binary cross-entropy as a mean over labels,
    macro F1 over the labels, and the share of samples with every label right.
    """

    loss_name = "bce"
    scores_better = {"acc": True, "loss": False, "f1": True, "exact": True}  # noqa: RUF012

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) binary cross-entropies, each a mean over labels."""
        values = F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")
        return values.mean(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (4,) scores."""
        logits = wide(outputs)
        guess, truth = logits > 0, y > 0.5
        right = (guess == truth).to(logits.dtype)
        hits = (guess & truth).sum(0).to(logits.dtype)
        # A label that is neither there nor predicted counts as zero, as in torchmetrics.
        f1 = (2 * hits / (guess.sum(0) + truth.sum(0))).nan_to_num()
        loss = self.sample_losses(logits, y).mean()
        return torch.stack([right.mean(), loss, f1.mean(), right.amin(-1).mean()])

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, L) probabilities."""
        return wide(outputs).sigmoid()

    def targets(self, y: Tensor) -> Tensor:
        """Return the (n, L) labels as integers."""
        return (y > 0.5).long()

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the task and the number of labels."""
        return {"task": "multilabel", "num_labels": outputs}


class Regression(Task):
    """D real numbers: (n, D) targets and outputs, squared error as a mean over the D.

    Scores are the mean squared error, its root, the mean absolute error, and R2, one minus the
    squared error over that of the targets' own mean (zero where the targets are all equal).
    """

    loss_name = "mse"
    scores_better = {"loss": False, "rmse": False, "mae": False, "r2": True}  # noqa: RUF012

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) squared errors, each a mean over the D numbers."""
        return F.mse_loss(outputs, y.to(outputs.dtype), reduction="none").mean(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (4,) scores."""
        values = wide(outputs)
        y = y.to(values.dtype)
        error = F.mse_loss(values, y)
        spread = (y - y.mean(0)).square().mean()
        r2 = torch.where(spread > 0, 1 - error / spread, torch.zeros_like(error))
        return torch.stack([error, error.sqrt(), F.l1_loss(values, y), r2])

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, D) values, or (n,) where D is one."""
        return wide(outputs).squeeze(-1)

    def targets(self, y: Tensor) -> Tensor:
        """Return (n, D) values, or (n,) where D is one."""
        return wide(y).squeeze(-1)

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the number of values."""
        return {"num_outputs": outputs}


def wide(values: Tensor) -> Tensor:
    """Return values in single precision at least."""
    return values if values.dtype == torch.float64 else values.float()


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
