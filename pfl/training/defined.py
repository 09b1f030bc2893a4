"""The value of a torchmetrics metric on some samples: where it is zero, and where it is undefined.

One rule holds for every score, and :data:`RULES` spells it out: a score is scikit-learn's number,
zero included, and undefined where scikit-learn calls it ill-defined because of what the targets
lack. A model that never predicts a class of its client has a precision of zero, not an undefined
one, so that no model leaves a mean by its own guesses. A metric that the rules do not name is
undefined where right guesses have no value either. torchmetrics returns a number there, warns
or fails, depending on the metric.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, get_args

import torch
from torch import Tensor
from torchmetrics import Metric, classification, regression
from torchmetrics.aggregation import BaseAggregator

from pfl.core.failure import error_line


@dataclass(frozen=True)
class Counts:
    """Numbers of samples of each class or label, or of all together: (K,) or scalars.

    Attributes:
        positives: Samples of the class.
        negatives: The others.
        guessed: Samples predicted to be of the class.
        rejected: The others.
    """

    positives: Tensor
    negatives: Tensor
    guessed: Tensor
    rejected: Tensor

    def total(self) -> Counts:
        """Return the sums over classes."""
        return Counts(*(values.sum() for values in vars(self).values()))


# What a score divides by, or what it needs.
Needs = Callable[[Counts], Tensor]


@dataclass(frozen=True)
class Rule:
    """When scores are zero and when they are undefined, in words and by counts of samples.

    Attributes:
        scores: Names of torchmetrics; those of classification may lack the prefix Binary,
            Multiclass or Multilabel, and then mean all three.
        undefined: The samples of a client on which the score is undefined; empty if it never is.
        zero: The guesses for which it is zero by this rule, as its formula gives 0 / 0.
        divisor: What a score of a class divides by, if it has one.
        needed: If the divisor is zero, the score is zero where this is not, else undefined.
    """

    scores: tuple[str, ...]
    undefined: str = ""
    zero: str = ""
    divisor: Needs | None = None
    needed: Needs | None = None

    def defined(self, values: Tensor, counts: Counts) -> Tensor:
        """Return the values with zeros by this rule, and NaN where they are undefined."""
        if self.divisor is None:
            return values
        counts = counts if values.dim() else counts.total()
        none = self.divisor(counts) == 0
        values = values.masked_fill(none, math.nan)
        if self.needed is None:
            return values
        return values.masked_fill(none & (self.needed(counts) > 0), 0.0)


_RANKS = Rule(
    ("AUROC", "EER", "LogAUC"),
    undefined="all targets are of one class",
    divisor=lambda n: n.positives * n.negatives,
)
_AVERAGE_PRECISION = Rule(
    ("AveragePrecision",), undefined="no target is positive", divisor=lambda n: n.positives
)
_MATTHEWS = Rule(("MatthewsCorrCoef",), zero="all guesses, or all targets, are of one class")
_KAPPA = Rule(
    ("CohenKappa",),
    undefined="all guesses and targets are of the same class",
    zero="all guesses, or all targets, are of one class",
)
# Of each target, if there are several. A common shift and scale of predictions and targets
# does not change them; torchmetrics treats small spreads as zero, and sums squares of large
# numbers.
_FITS = Rule(
    ("R2Score", "ExplainedVariance", "RelativeSquaredError"), undefined="all targets are equal"
)
_CORRELATIONS = Rule(
    ("PearsonCorrCoef", "SpearmanCorrCoef", "KendallRankCorrCoef", "ConcordanceCorrCoef"),
    undefined="all targets are equal",
    zero="all predictions are equal",
)
_PERCENTAGES = Rule(("MeanAbsolutePercentageError",), undefined="a target is zero")

RULES = (
    Rule(
        ("Precision",),
        undefined="no target is positive, and no guess",
        zero="no guess is positive, though a target is",
        divisor=lambda n: n.guessed,
        needed=lambda n: n.positives,
    ),
    Rule(
        ("NegativePredictiveValue",),
        undefined="no target is negative, and no guess",
        zero="no guess is negative, though a target is",
        divisor=lambda n: n.rejected,
        needed=lambda n: n.negatives,
    ),
    Rule(
        ("Recall", "MulticlassAccuracy", "MulticlassHammingDistance"),
        undefined="no target is positive",
        divisor=lambda n: n.positives,
    ),
    Rule(("Specificity",), undefined="no target is negative", divisor=lambda n: n.negatives),
    Rule(
        ("F1Score", "FBetaScore", "JaccardIndex"),
        undefined="no target is positive, and no guess",
        divisor=lambda n: n.positives + n.guessed,
    ),
    _RANKS,
    _AVERAGE_PRECISION,
    _MATTHEWS,
    _KAPPA,
    _FITS,
    _CORRELATIONS,
    _PERCENTAGES,
)
_ANY_OTHER = Rule(())
_KINDS = ("", "Binary", "Multiclass", "Multilabel")


def _classes(rule: Rule) -> tuple[type[Metric], ...]:
    """Return the rule's metrics; torchmetrics gained some of them over time."""
    found = (
        getattr(module, kind + score, None)
        for module in (classification, regression)
        for score in rule.scores
        for kind in _KINDS
    )
    # torchmetrics.classification.AUROC makes one of the three and is never an instance itself.
    return tuple(one for one in found if one is not None)


_Table: TypeAlias = (
    classification.BinaryConfusionMatrix
    | classification.MulticlassConfusionMatrix
    | classification.MultilabelConfusionMatrix
)
_TABLES = get_args(_Table)
_OF_RULES = [(rule, _classes(rule)) for rule in RULES]
# Scores that are computed of each target by itself.
PER_TARGET = _classes(_FITS) + _classes(_CORRELATIONS)
# Errors relative to the targets, whose size torchmetrics bounds from below.
_RELATIVE_ERRORS = (
    *(regression.MeanAbsolutePercentageError, regression.SymmetricMeanAbsolutePercentageError),
    regression.WeightedMeanAbsolutePercentageError,
)


# Metrics that exceed the bounds with which torchmetrics draws them.
_INTERVALS: Mapping[str, tuple[str, ...]] = {
    "[-1, 1]": ("CohenKappa", "MatthewsCorrCoef", "KendallRankCorrCoef"),
    "(-inf, 1]": ("ExplainedVariance",),
    "[0, inf)": ("HingeLoss", "CoverageError", "RelativeSquaredError"),
    "(-inf, inf)": ("CosineSimilarity", "TweedieDevianceScore", "NormalizedRootMeanSquaredError"),
}
_WITHIN = [(one, _classes(Rule(names))) for one, names in _INTERVALS.items()]


def interval(metric: Metric) -> str:
    """Return the interval of a metric's values, as :class:`~pfl.core.ranges.Range` has them.

    That of torchmetrics' own metrics is known; any other metric may be any finite number.

    Example:
        >>> interval(classification.BinaryF1Score()), interval(regression.R2Score())
        ('[0.0, 1.0]', '(-inf, 1.0]')
    """
    kind = type(metric)
    if not kind.__module__.startswith("torchmetrics."):
        return "(-inf, inf)"
    for one, kinds in _WITHIN:
        if issubclass(kind, kinds):
            return one
    low, high = kind.plot_lower_bound, kind.plot_upper_bound
    left = "(-inf" if low is None else f"[{low}"
    return f"{left}, " + ("inf)" if high is None else f"{high}]")


class UndefinedError(ValueError):
    """A metric has no value on some samples; the message says why."""


class Measure:
    """A metric of torchmetrics as one number, where it is defined.

    A score of several classes or labels is the mean of those that have one (``macro``), or their
    mean by the number of samples (``weighted``); a score of several targets is their mean.

    Args:
        metric: The metric, which is changed.
        own_zeros: Keep torchmetrics' own rule, since the user chose a ``zero_division``.

    Raises:
        ValueError: The metric compares nothing with targets, or gives a number for each target.
    """

    def __init__(self, metric: Metric, *, own_zeros: bool = False) -> None:
        # Another package's class that is derived from one may compare.
        update = inspect.getattr_static(type(metric), "update")
        if isinstance(metric, BaseAggregator) and update.__module__ == BaseAggregator.__module__:
            raise ValueError("it compares nothing with targets")
        if getattr(metric, "multidim_average", "global") != "global":
            raise ValueError("it gives a number for each sample")
        self.metric = metric
        self.rule = next((rule for rule, kind in _OF_RULES if isinstance(metric, kind)), _ANY_OTHER)
        if own_zeros:
            self.rule = _ANY_OTHER
        # How the scores of classes, or of targets, are averaged here; None is torchmetrics' own.
        self._average: str | None = None
        average = getattr(metric, "average", None)
        if self.rule.divisor is not None and average in ("macro", "weighted"):
            self._average, metric.average = average, "none"
        if self.rule in (_RANKS, _AVERAGE_PRECISION):
            warnings.filterwarnings("ignore", "No (posi|nega)tive samples .*in target", UserWarning)
        if self.rule is _FITS:
            self._average = getattr(metric, "multioutput", "uniform_average")
        # Whether sums over batches are all that the metric needs of its samples.
        self.sums = (
            all(isinstance(default, Tensor) for default in metric._defaults.values())
            and self.rule not in (_FITS, _CORRELATIONS, _RANKS, _AVERAGE_PRECISION, _PERCENTAGES)
            and not isinstance(metric, _RELATIVE_ERRORS)
        )

    def value(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the metric's value.

        Raises:
            UndefinedError: It is not defined.
            ValueError: The metric fails, or gives more than one number.
        """
        if self.rule in (_FITS, _CORRELATIONS):
            value = self._over_targets(predictions, targets)
        elif self.rule is _ANY_OTHER:
            best = partial(self._right, predictions, targets)
            return self._unruled(partial(self._one, predictions, targets), best)
        else:
            value = self._one(predictions, targets)
        return self._defined(value)

    def value_of_sums(self, given: Metric, right: Metric, form: torch.Size | None) -> float:
        """Return the value of a metric that has seen the samples, as :meth:`value` does.

        Args:
            given: The metric, which has seen the predictions.
            right: The metric, which has seen right guesses.
            form: As in :func:`_form`.
        """
        seen, best = copy.copy(self), copy.copy(self)
        seen.metric, best.metric = given, right
        if self.rule is _ANY_OTHER:
            return self._unruled(partial(seen._one, form=form), partial(best._one, form=form))
        return self._defined(seen._one(form=form))

    def _defined(self, value: float) -> float:
        if not math.isfinite(value):
            raise UndefinedError(self.rule.undefined)
        return value

    def _right(self, predictions: Tensor, targets: Tensor) -> float:
        return self._one(right_guesses(predictions, targets), targets)

    def _unruled(self, given: Callable[[], float], right: Callable[[], float]) -> float:
        """Return the value of a metric without a rule of its own.

        Where it has none, but right guesses would have one, the model is to blame: it counts, with
        zero, or with what the metric gives if less is better.
        """
        try:
            value = given()
            reason = UndefinedError(f"torchmetrics gives {value}")
        except UndefinedError as error:
            value, reason = math.nan, error
        if math.isfinite(value):
            return value
        try:
            best = right()
        except UndefinedError:
            best = math.nan
        if not math.isfinite(best):
            raise reason
        return value if self.metric.higher_is_better is False else 0.0

    def _one(self, *samples: Tensor, form: torch.Size | None = None) -> float:
        """Return the metric of predictions and targets, or of those that it has seen, of a form."""
        metric = self.metric
        if isinstance(metric, _RELATIVE_ERRORS):
            samples = self._resized(*samples)
        try:
            values = self._computed(*samples)
            if isinstance(metric, _TABLES) and self.rule is _MATTHEWS and _one_class(metric):
                return 0.0
            if self.rule.divisor is not None:
                counts = _counts(metric, *samples)
                values = self.rule.defined(values, counts)
                if self._average is not None:
                    return float(_mean(values, counts if self._average == "weighted" else None))
        finally:
            metric.reset()
        if values.shape == (_form(samples[1]) if samples else form):
            # One number for each target.
            values = values.mean()
        if values.numel() != 1:
            raise ValueError(
                f"the metric {type(metric).__name__} gives {values.numel()} numbers, where one is "
                "needed"
            )
        return float(values)

    def _computed(self, *samples: Tensor) -> Tensor:
        """Return what the metric gives; its state holds the samples afterwards."""
        name = type(self.metric).__name__
        if samples:
            self.metric.reset()
        try:
            values = self.metric(*samples) if samples else self.metric.compute()
        except (ValueError, RuntimeError, NotImplementedError) as error:
            # For instance, too few samples.
            raise UndefinedError(" ".join(str(error).split())) from error
        except Exception as error:
            raise ValueError(
                f"the metric {name} cannot be computed: {error_line(error)}"
            ) from error
        if not isinstance(values, Tensor):
            kind = type(values).__name__
            raise ValueError(f"the metric {name} gives a {kind}, where one number is needed")
        return values

    def _over_targets(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the mean over the targets that vary, each scored by itself."""
        name = type(self.metric).__name__
        if not targets.is_floating_point():
            raise ValueError(f"the metric {name} needs numbers as targets, and these are labels")
        if predictions.shape != targets.shape:
            raise ValueError(
                f"the metric {name} needs a prediction for each target, got predictions of shape "
                f"{(*predictions.shape,)} for targets of shape {(*targets.shape,)}"
            )
        columns = [one.reshape(len(targets), -1).unbind(1) for one in (predictions, targets)]
        if len(columns[1]) > 1 and self._average == "raw_values":
            raise ValueError(f"the metric {name} gives {len(columns[1])} numbers with raw_values")
        values, weights = [], []
        for guess, y in zip(*columns, strict=True):
            if bool((y == y[0]).all()):
                continue
            middle, spread = y.mean(), y.std(correction=0)
            weights.append(float(spread.square()) if self._average == "variance_weighted" else 1.0)
            if self.rule is _CORRELATIONS and bool((guess == guess[0]).all()):
                values.append(0.0)
                continue
            try:
                found = self._computed((guess - middle) / spread, (y - middle) / spread)
                values.append(float(found))
            finally:
                self.metric.reset()
        total = sum(weights)
        return (
            sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else math.nan
        )

    def _resized(self, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions and targets at a scale that torchmetrics can handle.

        Raises:
            UndefinedError: A divisor is zero.
        """
        least = targets.abs().min()
        if self.rule is _PERCENTAGES and least == 0:
            raise UndefinedError(self.rule.undefined)
        scale = least if least > 0 else targets.abs().max().clamp_min(1e-300)
        return predictions / scale, targets / scale


class Running:
    """A metric that sees the samples of a model in batches, and holds them only if it must.

    Args:
        measure: The metric, which is not changed.
    """

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._seen = [copy.deepcopy(measure.metric) for _ in range(2)] if measure.sums else []
        self._held: list[tuple[Tensor, Tensor]] = []
        self._form: torch.Size | None = None

    def add(self, predictions: Tensor, targets: Tensor) -> None:
        """Add a batch.

        Raises:
            ValueError: The metric does not take it.
        """
        if not self._seen:
            self._held.append((predictions, targets))
            return
        given, right = self._seen
        self._form = _form(targets)
        given.update(predictions, targets)
        right.update(right_guesses(predictions, targets), targets)

    def value(self) -> float:
        """Return the metric of all batches; see :meth:`Measure.value`."""
        if self._seen:
            given, right = self._seen
            return self._measure.value_of_sums(given, right, self._form)
        predictions, targets = zip(*self._held, strict=True)
        return self._measure.value(torch.cat(predictions), torch.cat(targets))


def _form(targets: Tensor) -> torch.Size | None:
    """Return the shape of the numbers of a sample; ``None`` if targets are no real numbers."""
    return targets.shape[1:] if targets.is_floating_point() else None


def right_guesses(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return right guesses, in the form of the predictions."""
    if predictions.dim() <= targets.dim():
        return targets.to(predictions.dtype)
    classes = torch.arange(predictions.shape[1]).view(-1, *[1] * (targets.dim() - 1))
    return (targets[:, None] == classes).to(predictions.dtype)


def _mean(values: Tensor, counts: Counts | None) -> Tensor:
    """Return the mean of the (K,) values that are not NaN, by samples if counts are given."""
    if counts is None:
        return values.nanmean()
    weights = counts.positives.to(values.dtype).masked_fill(values.isnan(), 0.0)
    return (values.nan_to_num() * weights).sum() / weights.sum()


def _one_class(metric: _Table) -> bool:
    """Return whether all targets, or all guesses, are of one class; labels are taken together."""
    table = metric.confmat.sum(0) if metric.confmat.dim() > 2 else metric.confmat
    return bool((table.sum(0) > 0).sum() < 2 or (table.sum(1) > 0).sum() < 2)


def _counts(metric: Metric, *samples: Tensor) -> Counts:
    """Return what a metric has counted, or, of one that ranks samples, their classes."""
    if hasattr(metric, "tp"):
        tp, fp, tn, fn = (torch.as_tensor(getattr(metric, one)) for one in ("tp", "fp", "tn", "fn"))
        return Counts(tp + fn, tn + fp, tp + fp, tn + fn)
    if isinstance(metric, _TABLES):
        table = metric.confmat
        # (2, 2), or (L, 2, 2) of labels: targets in rows, negatives first.
        if table.dim() > 2 or isinstance(metric, classification.BinaryConfusionMatrix):
            hits, guesses = table.sum(-1), table.sum(-2)
            return Counts(hits[..., 1], hits[..., 0], guesses[..., 1], guesses[..., 0])
        positives, guessed = table.sum(1), table.sum(0)
        return Counts(positives, table.sum() - positives, guessed, table.sum() - guessed)
    predictions, targets = samples
    ignored = getattr(metric, "ignore_index", None)
    kept = torch.ones_like(targets, dtype=torch.bool) if ignored is None else targets.ne(ignored)
    member = targets > 0
    if predictions.dim() > targets.dim():
        classes = torch.arange(predictions.shape[1])
        member, kept = targets.flatten()[:, None] == classes, kept.flatten()[:, None]
    elif targets.dim() > 1:
        labels = targets.shape[1]
        member, kept = (one.movedim(1, -1).reshape(-1, labels) for one in (member, kept))
    positives, negatives = (member & kept).sum(0), (~member & kept).sum(0)
    return Counts(positives, negatives, positives, negatives)
