"""What is predicted: the loss, the shape of outputs, and the scores of a kind of prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_calibration_error,
    multiclass_f1_score,
    multilabel_f1_score,
)


@dataclass(frozen=True)
class Task(ABC):
    """What the data want predicted of each sample.

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
        """Return one number for each of :attr:`scores_better`.

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
        logits = outputs.float()
        classes = logits.shape[-1]
        predicted = logits.argmax(-1)
        # Rows that are not finite would be refused; they count as a uniform guess.
        probabilities = logits.softmax(-1).nan_to_num(1.0 / classes)
        return torch.stack(
            [
                (predicted == y).float().mean(),
                F.cross_entropy(logits, y),
                multiclass_f1_score(predicted, y, classes, average="macro", validate_args=False),
                multiclass_calibration_error(probabilities, y, classes, validate_args=False),
            ]
        )

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, C) probabilities."""
        return outputs.float().softmax(-1)

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
        right = (outputs > 0) == (y > 0.5)
        probabilities = self.predictions(outputs).nan_to_num(0.5)
        labels = outputs.shape[-1]
        f1 = multilabel_f1_score(probabilities, self.targets(y), labels, validate_args=False)
        loss = self.sample_losses(outputs.float(), y).mean()
        return torch.stack([right.float().mean(), loss, f1, right.all(-1).float().mean()])

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, L) probabilities."""
        return outputs.float().sigmoid()

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
        values, y = outputs.float(), y.float()
        error = F.mse_loss(values, y)
        spread = (y - y.mean(0)).square().mean()
        r2 = torch.where(spread > 0, 1 - error / spread, torch.zeros_like(error))
        return torch.stack([error, error.sqrt(), F.l1_loss(values, y), r2])

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, D) values, or (n,) where D is one."""
        return outputs.float().squeeze(-1)

    def targets(self, y: Tensor) -> Tensor:
        """Return (n, D) values, or (n,) where D is one."""
        return y.float().squeeze(-1)

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the number of values."""
        return {"num_outputs": outputs}
