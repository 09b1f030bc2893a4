"""Tasks: the loss, the shape of the outputs and the scores of each kind of prediction."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl.core import criteria
from pfl.core.checks import finite, no_option, not_negative, positive, within
from pfl.core.criteria import defined, exact, pinball, wide
from pfl.core.failure import ExplainedError

# Intervals of scores: a share of samples, and an error.
SHARE, ERROR = "[0, 1]", "[0, inf)"


class TargetsError(ExplainedError, ValueError):
    """Targets and outputs do not go together."""


class BatchLossError(ExplainedError, TypeError):
    """A method asks for losses of single samples, but the task's loss is of a batch."""


@dataclass(frozen=True, repr=False)
class Task(ABC):
    """A kind of prediction, which is determined by the data.

    It defines the loss that methods use and the scores that the loop reports. It has no state:
    tasks with equal options are equal. Methods compute every loss of targets with :meth:`loss`, or
    with :meth:`sample_losses` for the loss of each sample.

    A subclass is a frozen dataclass, whose fields are its options. It gives the loss, as
    :meth:`sample_losses` or, if the samples of a batch cannot be told apart, as :meth:`loss`; and
    the scores, as :meth:`scores` of all outputs or, so that no more than a few numbers of each
    sample are held, as :meth:`rows` and :meth:`scores_of_rows`. Scores that are computed from sums
    may say so besides (:meth:`sums`, :meth:`joined`, :meth:`scores_of_sums`).

    Attributes:
        scores_better: The names of a model's scores, the main score first; ``True`` if more is
            better.
        scores_within: The interval of each score, as :class:`~pfl.core.ranges.Range` has them; one
            that is not named may be any finite number. What a client reports outside is refused.
            A class that has scores of its own does not inherit the declaration.
        may_lack: The names of scores that may be undefined for a client, such as R2 of one sample.
        has_classes: Whether each sample belongs to one of several classes, which methods can count
            and partitions can divide by.
        separable: Whether the loss of a batch is the mean of losses of its samples. Where it is
            not, as for Cox regression, what needs losses of samples is refused: some methods,
            privacy of samples, and padded batches.
        metrics: Metrics of torchmetrics that belong to the task, in the form of ``data.metrics``.
        loss_name: Name of the loss among the terms of a step.
        fitting: Some metrics of torchmetrics that fit the targets, for messages.
    """

    scores_better: ClassVar[Mapping[str, bool]]
    scores_within: ClassVar[Mapping[str, str]] = {}
    may_lack: ClassVar[Sequence[str]] = ()
    has_classes: ClassVar[bool] = False
    separable: ClassVar[bool] = True
    metrics: ClassVar[Sequence[str | dict[str, Any]]] = ()
    loss_name: ClassVar[str]
    fitting: ClassVar[Sequence[str]] = ("torchmetrics.AUROC", "torchmetrics.R2Score")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """End what a base declares of its scores where the class has others."""
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "scores" in own:
            for name in {"rows", "sums"} - own.keys():
                setattr(cls, name, vars(Task)[name])
        of_scores = ("scores_better", "scores", "scores_of", "rows", "scores_of_rows")
        if "scores_within" not in own and not own.keys().isdisjoint(of_scores):
            cls.scores_within = {}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options().items())
        return f"{type(self).__name__}({options})"

    def options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by the constructor's names."""
        values = ((_argument(one), getattr(self, one.name), one.default) for one in fields(self))
        return {name: value for name, value, default in values if value != default}

    def with_loss(self, options: Mapping[str, Any]) -> Task:
        """Return the task with these options of its loss.

        Raises:
            ValueError: The task has no such option, or a value is out of range.
        """
        known = [*map(_argument, fields(self))]
        for name in options:
            if name not in known:
                raise ValueError(f"loss: {no_option(type(self).__name__, name, known)}")
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}
        try:
            return type(self)(**{**self.options(), **values})
        except (TypeError, ValueError) as error:
            raise ValueError(f"loss: {error}") from error

    def of_targets(self, y: Tensor) -> tuple[Task, Tensor]:
        """Return the task for these targets, and them in the form that it needs; here unchanged.

        Args:
            y: (n, ...) targets of a whole data set, as they were read.

        Raises:
            ValueError: They do not suit the task.
        """
        return self, y

    def outputs(self, targets: int) -> int:
        """Return D, the number of outputs that a network needs for so many targets."""
        return targets

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) loss of each sample; runs under ``torch.func.vmap``.

        Args:
            outputs: (B, D, ...) outputs of the network.
            y: (B, ...) targets, as the data provide them.

        Raises:
            BatchLossError: The task's loss is of a batch.
        """
        raise BatchLossError(
            f"the loss of the task {self} is of a whole batch: it has no losses of single samples"
        )

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

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (S,) scores of one model, in the order of ``scores_better``.

        All are NaN if an output is; if only some are, these are undefined for the samples.

        Args:
            outputs: (n, D, ...), n at least 1.
            y: (n, ...) targets.
        """
        scores = self.scores_of_rows(self.rows(outputs, y))
        return torch.where(outputs.isnan().any(), torch.nan, scores)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B, K) numbers of each sample of a batch that its scores are computed from.

        Outputs and targets of a test are not held then, so that it takes no more memory for more
        samples. Targets are as they were read.

        Args:
            outputs: (B, D, ...).
            y: (B, ...) targets.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rows")

    def scores_of_rows(self, rows: Tensor) -> Tensor:
        """Return the (S,) scores from the (n, K) rows of all samples: here their means.

        NaN in a row marks what is undefined for the sample; it is left out of the mean.
        """
        return rows.nanmean(0)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (K,) numbers of a batch that scores of all samples are computed from.

        Nothing of a sample is held then, beyond a bound up to which :meth:`scores` is called with
        all outputs.

        Args:
            outputs: (B, D, ...).
            y: (B, ...) targets, as they were read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sums")

    def joined(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the (K,) numbers of two batches together: here their sum."""
        return one + other

    def scores_of_sums(self, sums: Tensor) -> Tensor:
        """Return the (S,) scores from the (K,) numbers of all batches."""
        raise NotImplementedError(f"{type(self).__name__} has no sums")

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return predictions in the form that torchmetrics expects: here the outputs."""
        return wide(outputs)

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

    def metric_arguments(self, outputs: int) -> dict[str, Any]:
        """Return arguments that metrics of torchmetrics may need, under torchmetrics' names.

        Args:
            outputs: D, the number of outputs of the network.
        """
        return {}


def _argument(field: Field[Any]) -> str:
    """Return the constructor's name of a field, which may not be called as a method is."""
    return str(field.metadata.get("argument", field.name))


def _of_masks(y: Tensor) -> str:
    """Return what to do if targets seem to be masks."""
    return "; masks, a class for each pixel, are task: segmentation" if y.dim() > 2 else ""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


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
    scores_within = {"acc": SHARE, "loss": ERROR, "f1": SHARE, "ece": SHARE}  # noqa: RUF012
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

    def of_targets(self, y: Tensor) -> tuple[Task, Tensor]:
        """Return the task and (n,) integer labels; see :meth:`Task.of_targets`."""
        shape = tuple(y.shape)
        numbered = not y.is_floating_point() and y.dim() == 1
        _require(
            numbered,
            f"classes must be (n,) integers from 0, got {y.dtype} of shape {shape}{_of_masks(y)}",
        )
        least = int(y.min()) if len(y) else 0
        _require(
            least >= 0,
            f"classes must be numbered from 0, got {least} in {int((y < 0).sum())} samples, first "
            f"in sample {int((y < 0).long().argmax()) if len(y) else 0}; -1 and -100 often mark "
            "samples without a label: leave them out (x[y >= 0], y[y >= 0])",
        )
        return self, y.long()

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) cross-entropies, under the options."""
        return criteria.cross_entropies(
            outputs, y, self.class_weights, self.label_smoothing, self.focal
        )

    def loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy, under the options."""
        own = type(self).sample_losses is not Classification.sample_losses
        altered = own or self.class_weights or self.label_smoothing or self.focal
        if weight is None and not altered:
            return criteria.mean_cross_entropy(outputs, y)
        return super().loss(outputs, y, weight)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (4,) scores; see :meth:`Task.scores`."""
        return self.scores_of([(outputs, y)])[0]

    def scores_of(self, models: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the (K, 4) scores, computed over the samples of all models at once."""
        logits, y = (torch.cat(values) for values in zip(*models, strict=True))
        sizes = [len(labels) for _, labels in models]
        return self._scored(self._columns(wide(logits), y), sizes, logits.shape[-1])

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return (B, 6): log-probability of the label, label, both guesses, confidence, and C.

        The guess by logits and that by probabilities differ where these are rounded to equal ones.
        """
        logits = wide(outputs)
        columns = self._columns(logits, y)
        classes = torch.full_like(columns[0], logits.shape[-1])
        return torch.stack([one.to(logits.dtype) for one in (*columns, classes)], dim=1)

    def scores_of_rows(self, rows: Tensor) -> Tensor:
        """Return the (4,) scores from the rows of all samples."""
        logs, label, predicted, guess, confidence, classes = rows.T.contiguous().unbind()
        columns = (logs, label.long(), predicted.long(), guess.long(), confidence)
        return self._scored(columns, [len(rows)], int(classes[0]))[0]

    @staticmethod
    def _columns(logits: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return (n,) numbers of samples: all of :meth:`rows` but C."""
        confidence, guess = logits.softmax(-1).max(-1)
        logs = logits.log_softmax(-1).gather(-1, y[:, None]).squeeze(-1)
        return logs, y, logits.argmax(-1), guess, confidence

    @staticmethod
    def _scored(columns: Sequence[Tensor], sizes: list[int], classes: int) -> Tensor:
        """Return the (K, 4) scores of K models from the numbers of their samples, in turn."""
        logs, y, predicted, guess, confidence = columns
        samples = torch.tensor(sizes, device=y.device)
        owner = torch.arange(len(sizes), device=y.device).repeat_interleave(
            samples, output_size=len(y)
        )
        first = torch.zeros_like(y)
        parts = zip(torch.split(logs[:, None], sizes), torch.split(first, sizes), strict=True)
        # Not the means, which are rounded differently.
        losses = torch.stack([F.nll_loss(model, zero) for model, zero in parts])
        tally = partial(criteria.group_sums, owner, len(sizes))
        hits = tally((predicted == y).to(logs.dtype), y, classes)
        ones = torch.ones_like(confidence)
        held = tally(ones, predicted, classes) + tally(ones, y, classes)
        right = (guess == y).to(logs.dtype)
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
    scores_within = {"acc": SHARE, "loss": ERROR, "brier": SHARE, "ece": SHARE}  # noqa: RUF012
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
    # There are no rows, as the metrics need the samples' probabilities, which are as many.
    scores_of = Task.scores_of

    def of_targets(self, y: Tensor) -> tuple[Task, Tensor]:
        """Return the task and (n,) labels 1 and 0; see :meth:`Task.of_targets`."""
        task, y = super().of_targets(y)
        marked = not len(y) or int(y.max()) <= 1
        _require(marked, "the classes of a binary task must be 0 and 1 (positive), got others")
        return task, y

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
    scores_within = {"acc": SHARE, "loss": ERROR, "f1": SHARE, "exact": SHARE}  # noqa: RUF012
    may_lack = ("f1",)

    def of_targets(self, y: Tensor) -> tuple[Task, Tensor]:
        """Return the task and (n, L) labels as floats; see :meth:`Task.of_targets`."""
        shape = tuple(y.shape)
        _require(
            y.dim() == 2, f"labels must be (n, L) zeros and ones, got shape {shape}{_of_masks(y)}"
        )
        zero_one = bool(((y == 0) | (y == 1)).all())
        _require(zero_one, "labels must be zeros and ones, got other numbers")
        return self, y.float()

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

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return (4 + 2 L,): samples, right labels, loss, wholly right ones, and F1's two parts."""
        logits, y = exact(outputs), exact(y)
        guess, truth = logits > 0, y > 0.5
        right = (guess == truth).to(logits.dtype)
        few = [right.mean(-1).sum(), self.sample_losses(logits, y).sum(), right.amin(-1).sum()]
        count = logits.new_tensor(len(logits))
        parts = (guess & truth).sum(0), guess.sum(0) + truth.sum(0)
        return torch.cat([torch.stack([count, *few]), *(part.to(logits.dtype) for part in parts)])

    def scores_of_sums(self, sums: Tensor) -> Tensor:
        """Return the (4,) scores from those of all batches."""
        acc, loss, whole = sums[1:4] / sums[0]
        hits, held = sums[4:].view(2, -1)
        return defined(torch.stack([acc, loss, (2 * hits / held).nanmean(), whole]), loss)

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

    @property
    def scores_within(self) -> Mapping[str, str]:  # type: ignore[override]
        """The interval of each score, of which R2 may be as low as it likes."""
        return dict.fromkeys(self.scores_better, ERROR) | {"r2": "(-inf, 1]"}

    def of_targets(self, y: Tensor) -> tuple[Task, Tensor]:
        """Return the task and (n, D) numbers in double precision; see :meth:`Task.of_targets`."""
        shape = tuple(y.shape)
        _require(
            y.dim() <= 2,
            f"numbers to predict must be (n,) or (n, D), got shape {shape}{_of_masks(y)}",
        )
        return self, (y if y.dim() == 2 else y[:, None]).to(torch.float64)

    def outputs(self, targets: int) -> int:
        """Return D, or D Q with quantiles."""
        return targets * max(1, len(self.quantiles))

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the (B,) losses, each a mean over the D numbers (and the Q quantiles)."""
        y = y.to(outputs.dtype)
        if outputs.shape[1:] != (needed := (self.outputs(y.shape[-1]),)):
            raise TargetsError(
                f"targets of shape {tuple(y.shape)} need outputs ({len(y)}, {needed[0]}), got "
                f"{tuple(outputs.shape)}"
            )
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

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return (6 D + Q D,) numbers: (6, D) of each number, and the pinball losses.

        The six are the samples, squared and absolute errors, and mean, squared deviations from it
        and whether all are equal, of the targets; the mean stands in for them then.
        """
        outputs, y = exact(outputs), exact(y)
        error, mean = self._point(outputs) - y, y.mean(0)
        count, equal = torch.full_like(mean, len(y)), (y == y[:1]).all(0)
        squares = (y - mean).square().sum(0).masked_fill(equal, 0.0)
        rows = [count, error.square().sum(0), error.abs().sum(0)]
        rows += [y[0].where(equal, mean), squares, equal.to(y.dtype)]
        losses = (
            pinball(outputs, y, self.quantiles).sum(0).flatten() if self.quantiles else y[0, :0]
        )
        return torch.cat([*rows, losses])

    def joined(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the numbers of two batches together (Chan et al., 1983, for the deviations)."""
        targets = len(one) // (6 + len(self.quantiles))
        first, second = (some[: 6 * targets].view(6, targets) for some in (one, other))
        both = one + other
        count, apart = both[:targets], second[3] - first[3]
        equal = (first[5] * second[5] * (apart == 0)).bool()
        rows = both[: 6 * targets].view(6, targets)
        rows[3] = (first[3] + apart * second[0] / count).where(~equal, first[3])
        rows[4] += apart.square() * first[0] * second[0] / count
        rows[5] = equal
        return both

    def scores_of_sums(self, sums: Tensor) -> Tensor:
        """Return the (S,) scores from those of all batches."""
        targets = len(sums) // (6 + len(self.quantiles))
        count, squares, sizes, _, spread, equal = sums[: 6 * targets].view(6, targets)
        error, r2 = (
            (squares / count).mean(),
            (1 - squares / spread).masked_fill(equal > 0, torch.nan),
        )
        scores = torch.stack([error, error.sqrt(), (sizes / count).mean(), r2.nanmean()])
        if self.quantiles:
            losses = (sums[6 * targets :].view(targets, -1) / count[:, None]).mean(0)
            scores = torch.cat([losses.mean()[None], scores[1:], losses])
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
