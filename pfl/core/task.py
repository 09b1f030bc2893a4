"""Tasks: the loss, the shape of the outputs and the scores of each kind of prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15
_HALVES = (torch.bfloat16, torch.float16)

# (n,) values and (n,) groups -> (K, groups) sums, by model and group.
Tally: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Task(ABC):
    """A kind of prediction, which is determined by the data.

    It defines the loss that methods use and the scores that the loop reports. It has no state:
    tasks with equal options are equal.

    Attributes:
        loss_name: Name of the loss among the terms of a step.
        scores_better: The names of a model's scores, the main score first; ``True`` if more is
            better.
        has_classes: Whether each sample belongs to one of several classes, which methods can count
            and partitions can divide by.
    """

    loss_name: ClassVar[str]
    scores_better: ClassVar[Mapping[str, bool]]
    has_classes: ClassVar[bool] = False

    @abstractmethod
    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) loss of each sample.

        Args:
            outputs: (B, D) outputs of the network.
            y: (B, ...) targets, as the data provide them.
        """

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss of the real samples; runs under ``torch.func.vmap``.

        Args:
            outputs: (B, D) outputs of the network.
            y: (B, ...) targets.
            weight: (B,) one for a real sample and zero for padding; ``None`` if all are real.
        """
        values = self.sample_losses(outputs, y)
        if weight is None:
            return values.mean()
        return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)

    @abstractmethod
    def scores_of(self, models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the (K, S) scores of K models, in the order of ``scores_better``.

        A model's scores do not depend on the other models. All are NaN if an output is.

        Args:
            models: (n, D) outputs and (n, ...) targets of each model; n and K are at least 1.
        """

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (S,) scores of one model; see :meth:`scores_of`."""
        return self.scores_of([(outputs, y)])[0]

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return predictions in the form that torchmetrics expects: probabilities or values."""

    @abstractmethod
    def targets(self, y: Tensor) -> Tensor:
        """Return the targets in the form that torchmetrics expects."""

    @abstractmethod
    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return arguments that metrics of torchmetrics may need, under torchmetrics' names.

        Args:
            outputs: D, the number of outputs of the network.
        """


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Return the (B,) cross-entropies, as ``F.cross_entropy(reduction="none")`` does.

    ``torch.func.vmap`` computes that function in two dozen steps of Python, and in bfloat16 where
    it would be computed in float32 without vmap.

    Args:
        logits: (B, C).
        y: (B,) labels.
    """
    return -_as_autocast(logits).log_softmax(-1).gather(-1, y[:, None]).squeeze(-1)


def mean_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy, as ``F.cross_entropy`` does, and as exactly under vmap.

    Args:
        logits: (B, C).
        y: (B,) labels.
    """
    # Not the mean of cross_entropies, which is rounded differently.
    return F.cross_entropy(_as_autocast(logits), y)


def _as_autocast(logits: Tensor) -> Tensor:
    """Return logits in float32 where autocast computes losses in it, which vmap would leave out."""
    halves = torch.is_autocast_enabled(logits.device.type) and logits.dtype in _HALVES
    return logits.float() if halves else logits


class Classification(Task):
    """One of C classes: (n,) integer labels, (n, C) logits, cross-entropy.

    The scores are accuracy, cross-entropy, macro F1 over the classes that are present or predicted,
    and the expected calibration error over 15 bins of confidence.
    """

    loss_name = "ce"
    scores_better = {"acc": True, "loss": False, "f1": True, "ece": False}  # noqa: RUF012
    has_classes = True

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) cross-entropies."""
        return cross_entropies(outputs, y)

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy."""
        if weight is None:
            return mean_cross_entropy(outputs, y)
        return super().loss(outputs, y, weight)

    def scores_of(self, models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the (K, 4) scores, computed over the samples of all models at once."""
        sizes = [len(y) for _, y in models]
        logits = wide(torch.cat([outputs for outputs, _ in models]))
        y = torch.cat([y for _, y in models])
        samples = torch.tensor(sizes, device=y.device)
        owner = torch.arange(len(sizes), device=y.device).repeat_interleave(
            samples, output_size=len(y)
        )
        parts = zip(torch.split(logits.log_softmax(-1), sizes), torch.split(y, sizes), strict=True)
        losses = torch.stack([F.nll_loss(own, labels) for own, labels in parts])
        classes = logits.shape[-1]
        confidence, guess = logits.softmax(-1).max(-1)
        tally = partial(_sums, owner, len(sizes))
        predicted = logits.argmax(-1)
        hits = tally((predicted == y).to(logits.dtype), y, classes)
        ones = torch.ones_like(confidence)
        found = tally(ones, predicted, classes) + tally(ones, y, classes)
        right = (guess == y).to(logits.dtype)
        scores = [
            hits.sum(1) / samples,
            losses,
            _macro_f1(hits, found),
            _calibration_error(tally, confidence, right),
        ]
        return _defined(torch.stack(scores, dim=1), losses[:, None])

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

    The scores are the share of correct labels, the binary cross-entropy averaged over labels,
    macro F1 over the labels, and the share of samples with every label correct.
    """

    loss_name = "bce"
    scores_better = {"acc": True, "loss": False, "f1": True, "exact": True}  # noqa: RUF012

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) binary cross-entropies, each a mean over labels."""
        values = F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")
        return values.mean(-1)

    def scores_of(self, models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the (K, 4) scores."""
        return torch.stack([self._scores(*model) for model in models])

    def _scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        logits = wide(outputs)
        guess, truth = logits > 0, y > 0.5
        right = (guess == truth).to(logits.dtype)
        hits = (guess & truth).sum(0).to(logits.dtype)
        # The F1 of a label that is neither present nor predicted is zero, as in torchmetrics.
        f1 = (2 * hits / (guess.sum(0) + truth.sum(0))).nan_to_num()
        loss = self.sample_losses(logits, y).mean()
        scores = torch.stack([right.mean(), loss, f1.mean(), right.amin(-1).mean()])
        return _defined(scores, loss)

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
    """D real numbers: (n, D) targets and outputs, squared error averaged over the D numbers.

    The scores are the mean squared error, its root, the mean absolute error and R2: one minus the
    ratio of the squared error to that of the targets' mean (zero if all targets are equal).
    """

    loss_name = "mse"
    scores_better = {"loss": False, "rmse": False, "mae": False, "r2": True}  # noqa: RUF012

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) squared errors, each a mean over the D numbers."""
        return F.mse_loss(outputs, y.to(outputs.dtype), reduction="none").mean(-1)

    def scores_of(self, models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the (K, 4) scores."""
        return torch.stack([self._scores(*model) for model in models])

    def _scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        values = wide(outputs)
        y = y.to(values.dtype)
        error = F.mse_loss(values, y)
        spread = (y - y.mean(0)).square().mean()
        r2 = torch.where(spread > 0, 1 - error / spread, torch.zeros_like(error))
        scores = torch.stack([error, error.sqrt(), F.l1_loss(values, y), r2])
        # Zero times infinity is NaN.
        return _defined(scores, 0 * error)

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
    """Return values in single precision or, if they are float64, unchanged."""
    return values if values.dtype == torch.float64 else values.float()


def _defined(scores: Tensor, loss: Tensor) -> Tensor:
    """Return scores, all NaN where the loss is: some output then says nothing of its sample."""
    return torch.where(loss.isnan(), loss, scores)


def _macro_f1(hits: Tensor, found: Tensor) -> Tensor:
    """Return (K,) mean F1 scores of the classes that are present or predicted.

    Args:
        hits: (K, C) numbers of correctly predicted samples of each model and class.
        found: (K, C) numbers of samples of the class plus samples predicted to be of it.
    """
    present = (found > 0).to(hits.dtype)
    f1 = (2 * hits / found).nan_to_num()
    return (f1 / present.sum(1, keepdim=True)).sum(1)


def _calibration_error(tally: Tally, confidence: Tensor, right: Tensor) -> Tensor:
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


def _sums(owner: Tensor, models: int, values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (models, count) sums of (n,) values by model and group."""
    sums = values.new_zeros(models * count)
    return sums.scatter_add_(0, owner * count + groups, values).view(models, count)
