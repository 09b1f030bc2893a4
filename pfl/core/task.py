"""Tasks: the loss, the shape of the outputs and the scores of each kind of prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.core import criteria
from pfl.core.checks import finite, not_negative, positive, within
from pfl.core.criteria import defined, exact, pinball, wide


class LossOptions(TypedDict, total=False):
    """Options of the tasks' losses, as a data module's argument ``loss`` takes them.

    Those of :class:`Classification` and :class:`Binary` are ``class_weights`` (``balanced`` is n /
    (C n_c) for the n_c training samples of class c of all clients), ``label_smoothing`` and
    ``focal``; those of :class:`Regression` are ``huber`` and ``quantiles``.
    """

    class_weights: Literal["balanced"] | Sequence[float] | None
    label_smoothing: float
    focal: float
    huber: float | None
    quantiles: Sequence[float]


@dataclass(frozen=True, repr=False)
class Task(ABC):
    """A kind of prediction, which is determined by the data.

    It defines the loss that methods use and the scores that the loop reports. It has no state:
    tasks with equal options are equal. Methods compute every loss of targets with :meth:`loss`, or
    with :meth:`sample_losses` for the loss of each sample.

    Attributes:
        scores_better: The names of a model's scores, the main score first; ``True`` if more is
            better.
        may_lack: The names of scores that may be undefined for a client, such as R2 of one sample.
        has_classes: Whether each sample belongs to one of several classes, which methods can count
            and partitions can divide by.
        metrics: Metrics of torchmetrics that belong to the task, in the form of ``data.metrics``.
        loss_name: Name of the loss among the terms of a step.
        fitting: Some metrics of torchmetrics that fit the targets, for messages.
    """

    scores_better: ClassVar[Mapping[str, bool]]
    may_lack: ClassVar[Sequence[str]] = ()
    has_classes: ClassVar[bool] = False
    metrics: ClassVar[Sequence[str | dict[str, Any]]] = ()
    loss_name: ClassVar[str]
    fitting: ClassVar[Sequence[str]] = ("torchmetrics.AUROC", "torchmetrics.R2Score")

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options().items())
        return f"{type(self).__name__}({options})"

    def options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def with_loss(self, options: Mapping[str, Any]) -> Task:
        """Return the task with these options of its loss.

        Raises:
            ValueError: The task has no such option, or a value is out of range.
        """
        known = [field.name for field in fields(self)]
        for name in options:
            if name not in known:
                raise ValueError(
                    f"loss: {type(self).__name__} has no option {name!r}, only "
                    f"{', '.join(known) or 'its own loss'}"
                )
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}
        try:
            return replace(self, **values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"loss: {error}") from error

    def outputs(self, targets: int) -> int:
        """Return D, the number of outputs that a network needs for so many targets."""
        return targets

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

    def scores_of(self, models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the (K, S) scores of K models, each as by :meth:`scores`."""
        return torch.stack([self.scores(*model) for model in models])

    @abstractmethod
    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (S,) scores of one model, in the order of ``scores_better``.

        All are NaN if an output is; if only some are, these are undefined for the samples.

        Args:
            outputs: (n, D), n at least 1.
            y: (n, ...) targets.
        """

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return predictions in the form that torchmetrics expects: probabilities or values."""

    def targets(self, y: Tensor) -> Tensor:
        """Return the targets in the form that torchmetrics expects."""
        return y

    def example(self, outputs: int) -> tuple[Tensor, Tensor] | None:
        """Return (n, D) outputs and (n, ...) targets of a few made-up samples.

        Metrics are tried on them before a run; ``None`` leaves that to the first test.

        Args:
            outputs: D, the number of outputs of the network.
        """
        return None

    @abstractmethod
    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return arguments that metrics of torchmetrics may need, under torchmetrics' names.

        Args:
            outputs: D, the number of outputs of the network.
        """


@dataclass(frozen=True, repr=False)
class Classification(Task):
    """One of C classes: (n,) integer labels, (n, C) logits, cross-entropy.

    The scores are accuracy, cross-entropy, macro F1 over the classes that are present or predicted,
    and the expected calibration error over 15 bins of confidence. The score ``loss`` is the plain
    cross-entropy, whatever the options.

    Args:
        class_weights: (C,) factor of the loss of a sample of each class. Unlike torch's, the mean
            over a batch is over its samples, not over their weights.
        label_smoothing: The share of a label that is spread evenly over all classes, in [0, 1).
        focal: gamma of the focal loss (Lin et al., ICCV 2017, arXiv 1708.02002), which multiplies
            the cross-entropy by (1 - p) ** gamma for a label of probability p.

    Raises:
        ValueError: A number is out of range, or both ``label_smoothing`` and ``focal`` are given.
    """

    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    focal: float = 0.0

    loss_name = "ce"
    scores_better = {"acc": True, "loss": False, "f1": True, "ece": False}  # noqa: RUF012
    has_classes = True
    fitting = ("torchmetrics.AUROC", "torchmetrics.F1Score")

    def __post_init__(self) -> None:
        within("[0, 1)", label_smoothing=self.label_smoothing)
        not_negative(focal=self.focal)
        if self.class_weights is not None:
            for weight in self.class_weights:
                not_negative(class_weights=weight)
                finite(class_weights=weight)
            positive(**{"the sum of class_weights": sum(self.class_weights)})
        if self.label_smoothing and self.focal:
            raise ValueError("focal and label_smoothing exclude each other: give one of them")

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) cross-entropies, under the options."""
        return criteria.cross_entropies(
            outputs, y, self.class_weights, self.label_smoothing, self.focal
        )

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy, under the options."""
        if weight is None and not self.options():
            return criteria.mean_cross_entropy(outputs, y)
        return super().loss(outputs, y, weight)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (4,) scores; see :meth:`Task.scores`."""
        return self.scores_of([(outputs, y)])[0]

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
        losses = torch.stack([F.nll_loss(model, labels) for model, labels in parts])
        classes = logits.shape[-1]
        confidence, guess = logits.softmax(-1).max(-1)
        tally = partial(criteria.group_sums, owner, len(sizes))
        predicted = logits.argmax(-1)
        hits = tally((predicted == y).to(logits.dtype), y, classes)
        ones = torch.ones_like(confidence)
        held = tally(ones, predicted, classes) + tally(ones, y, classes)
        right = (guess == y).to(logits.dtype)
        scores = [
            hits.sum(1) / samples,
            losses,
            criteria.macro_f1(hits, held),
            criteria.calibration_error(tally, confidence, right),
        ]
        return defined(torch.stack(scores, dim=1), losses[:, None])

    def example(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return samples of up to 16 classes, one of which is predicted wrongly."""
        y = torch.arange(32) % min(outputs, 16)
        return F.one_hot(y.roll(1).where(torch.arange(32) == 0, y), outputs).double(), y

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, C) probabilities."""
        return wide(outputs).softmax(-1)

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the task and the number of classes."""
        return {"task": "multiclass", "num_classes": outputs}


@dataclass(frozen=True, repr=False)
class Binary(Classification):
    """A positive and a negative class: (n,) labels 1 and 0, (n, 2) logits, cross-entropy.

    The scores are accuracy, cross-entropy, and of the positive class's probability the Brier score
    and the calibration error over 15 bins. ``metrics`` adds the areas under the ROC curve (auroc)
    and under the curve of precision and recall (auprc, the average precision), sensitivity,
    specificity and F1 at a probability of 1/2. Each is a score of the positive class; a client on
    which it is undefined, such as the specificity without a negative sample, is left out.
    """

    scores_better = {"acc": True, "loss": False, "brier": False, "ece": False}  # noqa: RUF012
    metrics = tuple(
        {"metric": f"torchmetrics.classification.Binary{metric}", "name": name}
        for name, metric in {
            "auroc": "AUROC",
            "auprc": "AveragePrecision",
            "sensitivity": "Recall",
            "specificity": "Specificity",
            "f1": "F1Score",
        }.items()
    )
    scores_of = Task.scores_of

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (S,) scores; see :meth:`Task.scores`."""
        loss = F.cross_entropy(wide(outputs), y)
        chance = self.predictions(outputs)
        truth = y.to(chance.dtype)
        tally = partial(criteria.group_sums, torch.zeros_like(y), 1)
        right = ((chance > 0.5) == (y > 0)).to(chance.dtype)
        error = criteria.calibration_error(tally, chance, truth)[0]
        scores = torch.stack([right.mean(), loss, (chance - truth).square().mean(), error])
        return defined(scores, loss)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n,) probabilities of the positive class."""
        return wide(outputs).softmax(-1)[:, 1].contiguous()

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the task."""
        return {"task": "binary"}


@dataclass(frozen=True, repr=False)
class MultiLabel(Task):
    """Any of L labels: (n, L) targets of zeros and ones, (n, L) logits, binary cross-entropy.

    The scores are the share of correct labels, the binary cross-entropy averaged over labels,
    macro F1 over the labels that are present or predicted (undefined if none is), and the share of
    samples with every label correct. They are computed in double precision.
    """

    loss_name = "bce"
    fitting = ("torchmetrics.AUROC", "torchmetrics.F1Score")
    scores_better = {"acc": True, "loss": False, "f1": True, "exact": True}  # noqa: RUF012
    may_lack = ("f1",)

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) binary cross-entropies, each a mean over labels."""
        values = F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")
        return values.mean(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (S,) scores; see :meth:`Task.scores`."""
        logits, y = exact(outputs), exact(y)
        guess, truth = logits > 0, y > 0.5
        right = (guess == truth).to(logits.dtype)
        hits = (guess & truth).sum(0).to(logits.dtype)
        f1 = 2 * hits / (guess.sum(0) + truth.sum(0))
        loss = self.sample_losses(logits, y).mean()
        scores = torch.stack([right.mean(), loss, f1.nanmean(), right.amin(-1).mean()])
        return defined(scores, loss)

    def example(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return samples of which each label is on every second one; some are predicted wrongly."""
        y = ((torch.arange(32)[:, None] + torch.arange(outputs)) % 2).double()
        return torch.where(torch.arange(32)[:, None] < 3, 0.5 - y, y - 0.5), y

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, L) probabilities."""
        return wide(outputs).sigmoid()

    def targets(self, y: Tensor) -> Tensor:
        """Return the (n, L) labels as integers."""
        return (y > 0.5).long()

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the task and the number of labels."""
        return {"task": "multilabel", "num_labels": outputs}


@dataclass(frozen=True, repr=False)
class Regression(Task):
    """D real numbers: (n, D) targets and outputs, squared error averaged over the D numbers.

    The scores are the mean squared error, its root, the mean absolute error and R2: one minus the
    ratio of the squared error to that of the targets' mean. With several targets it is the plain
    mean of the R2 of each; a target that is equal in all samples has none, and R2 is undefined if
    no target varies. They are computed in double precision.

    With ``quantiles`` there are D Q outputs; the Q of a number are adjacent. The scores then begin
    with the mean pinball loss (``loss``) and end with that of each quantile (``pinball_0.1``); the
    others are those of the quantile next to the median.

    Args:
        huber: delta of the Huber loss, in place of the squared error.
        quantiles: Q ascending numbers in (0, 1): the loss is the pinball loss of these quantiles.

    Raises:
        ValueError: A number is out of range, or both are given.
    """

    huber: float | None = None
    quantiles: tuple[float, ...] = ()

    may_lack = ("r2",)
    fitting = ("torchmetrics.R2Score", "torchmetrics.PearsonCorrCoef")

    def __post_init__(self) -> None:
        positive(huber=self.huber)
        for quantile in self.quantiles:
            within("(0, 1)", quantiles=quantile)
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError(f"quantiles must be ascending, got {list(self.quantiles)}")
        if self.quantiles and self.huber is not None:
            raise ValueError("huber and quantiles exclude each other: give one of them")

    @property
    def loss_name(self) -> str:  # type: ignore[override]
        """``mse``, ``huber`` or ``pinball``."""
        return "pinball" if self.quantiles else "mse" if self.huber is None else "huber"

    @property
    def scores_better(self) -> Mapping[str, bool]:  # type: ignore[override]
        """The names of the scores; ``True`` if more is better."""
        better = {"loss": False, "rmse": False, "mae": False, "r2": True}
        return better | {f"pinball_{quantile:g}": False for quantile in self.quantiles}

    def outputs(self, targets: int) -> int:
        """Return D, or D Q with quantiles."""
        return targets * max(1, len(self.quantiles))

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) losses, each a mean over the D numbers (and the Q quantiles)."""
        y = y.to(outputs.dtype)
        if self.quantiles:
            return pinball(outputs, y, self.quantiles).flatten(1).mean(-1)
        if self.huber is not None:
            return F.huber_loss(outputs, y, reduction="none", delta=self.huber).mean(-1)
        return F.mse_loss(outputs, y, reduction="none").mean(-1)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (S,) scores; see :meth:`Task.scores`."""
        outputs, y = exact(outputs), exact(y)
        values = self._point(outputs)
        error = F.mse_loss(values, y)
        # (D, n), so that a number's sum is taken as one over all numbers is.
        errors, spreads = ((values - y).T.contiguous(), (y - y.mean(0)).T.contiguous())
        ratios = errors.square().mean(1) / spreads.square().mean(1)
        # The mean of equal numbers may be rounded, so that their spread is not zero.
        r2 = (1 - ratios).masked_fill((y == y[:1]).all(0), torch.nan).nanmean()
        scores = torch.stack([error, error.sqrt(), F.l1_loss(values, y), r2])
        if self.quantiles:
            losses = pinball(outputs, y, self.quantiles).mean((0, 1))
            scores = torch.cat([losses.mean()[None], scores[1:], losses])
        # Zero times infinity is NaN.
        return defined(scores, 0 * scores[0])

    def example(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return samples of positive numbers, of which each prediction is a little off."""
        each = self.outputs(1)
        y = 1 + torch.arange(32).double()[:, None] + torch.arange(outputs // each)
        off = 1 + 0.1 * (torch.arange(32) % 3)[:, None]
        return (off * y).repeat_interleave(each, dim=1), y

    def _point(self, outputs: Tensor) -> Tensor:
        """Return the (n, D) values, or those of the quantile next to the median."""
        if not self.quantiles:
            return outputs
        middle = min(range(len(self.quantiles)), key=lambda q: abs(self.quantiles[q] - 0.5))
        return outputs[:, middle :: len(self.quantiles)]

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return (n, D) values (the quantile next to the median), or (n,) where D is one."""
        return self._point(wide(outputs)).squeeze(-1)

    def targets(self, y: Tensor) -> Tensor:
        """Return (n, D) values, or (n,) where D is one."""
        return wide(y).squeeze(-1)

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return the number of values."""
        return {"num_outputs": outputs // self.outputs(1)}
