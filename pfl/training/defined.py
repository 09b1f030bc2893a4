"""The value of a torchmetrics metric on some samples, where it is defined.

A metric is undefined, for instance, without positive samples, or if all targets are equal.
torchmetrics then returns a number, warns or fails, depending on the metric.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric, classification, regression

from pfl.core.failure import error_line

# Scores of a positive class that need positive samples, or negative ones.
_NEEDS_POSITIVES = (classification.BinaryRecall, classification.BinaryF1Score)
_NEEDS_NEGATIVES = (classification.BinarySpecificity,)
_RANKS_CLASSES = (classification.MulticlassAUROC, classification.MulticlassAveragePrecision)
_RANKINGS = (
    *_RANKS_CLASSES,
    *(classification.BinaryAUROC, classification.BinaryAveragePrecision),
    *(classification.MultilabelAUROC, classification.MultilabelAveragePrecision),
)
# Means over classes or labels: those for which a score is undefined are left out.
PER_CLASS = (
    *_RANKINGS,
    *(classification.MulticlassStatScores, classification.MultilabelStatScores),
    *(classification.MulticlassJaccardIndex, classification.MultilabelJaccardIndex),
)
# Correlations of classes, undefined if all samples or all predictions are of one class.
_AGREEMENTS = (
    *(classification.BinaryMatthewsCorrCoef, classification.MulticlassMatthewsCorrCoef),
    *(classification.BinaryCohenKappa, classification.MulticlassCohenKappa),
)
# Scores invariant under a common shift and scale of predictions and targets. torchmetrics treats
# small spreads as zero, and sums squares of large numbers.
_RELATIVE = (
    *(regression.R2Score, regression.ExplainedVariance, regression.RelativeSquaredError),
    *(regression.PearsonCorrCoef, regression.SpearmanCorrCoef, regression.KendallRankCorrCoef),
    regression.ConcordanceCorrCoef,
)
_CORRELATIONS = (
    *(regression.PearsonCorrCoef, regression.SpearmanCorrCoef, regression.KendallRankCorrCoef),
)
# Errors relative to the targets, whose size torchmetrics bounds from below.
_PERCENTAGES = (
    *(regression.MeanAbsolutePercentageError, regression.SymmetricMeanAbsolutePercentageError),
    regression.WeightedMeanAbsolutePercentageError,
)


class UndefinedError(ValueError):
    """A metric has no value on some samples; the message says why."""


def score(metric: Metric, predictions: Tensor, targets: Tensor) -> float:
    """Return a metric's value.

    Raises:
        UndefinedError: It is not defined.
        ValueError: The metric fails.
    """
    ranked = _ranked(metric, predictions, targets)
    if isinstance(metric, (*_RELATIVE, *_PERCENTAGES)):
        predictions, targets = _scaled(metric, predictions, targets)
    metric.reset()
    try:
        values = metric(predictions, targets)
        if values.dim() and isinstance(metric, PER_CLASS):
            # The mean over classes for which it is defined; a number is torchmetrics' own mean.
            values = values[~values.isnan() if ranked is None else ranked & ~values.isnan()].mean()
        value = float(values)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        # For instance, R2 of a single sample.
        raise UndefinedError(" ".join(str(error).split())) from error
    except Exception as error:
        name = type(metric).__name__
        raise ValueError(f"the metric {name} cannot be computed: {error_line(error)}") from error
    finally:
        metric.reset()
    if not math.isfinite(value):
        raise UndefinedError(f"torchmetrics gives {value}")
    return value


def _ranked(metric: Metric, predictions: Tensor, targets: Tensor) -> Tensor | None:
    """Return a mask of the classes or labels that can rank the samples, for a ranking metric.

    Raises:
        UndefinedError: Samples that the metric needs are missing.
    """
    if isinstance(metric, _NEEDS_POSITIVES) and not (targets > 0).any():
        raise UndefinedError("No positive samples in targets")
    if isinstance(metric, _NEEDS_NEGATIVES) and not (targets <= 0).any():
        raise UndefinedError("No negative samples in targets")
    if isinstance(metric, _AGREEMENTS):
        guess = predictions.argmax(1) if predictions.dim() > 1 else predictions > 0.5
        if any(bool((values == values[0]).all()) for values in (targets, guess)):
            raise UndefinedError("all samples, or all predictions, are of one class")
    member = targets > 0
    if predictions.dim() > targets.dim():
        member = targets[:, None] == torch.arange(predictions.shape[1])
    if isinstance(metric, classification.MulticlassAccuracy):
        return member.any(0)
    if isinstance(
        metric, classification.MulticlassSpecificity | classification.MultilabelSpecificity
    ):
        return ~member.all(0)
    if not isinstance(metric, _RANKINGS):
        return None
    ranked = member.any(0) & ~member.all(0)
    if not bool(ranked.any()):
        which = "negative" if bool(member.any()) else "positive"
        raise UndefinedError(f"No {which} samples in targets")
    return ranked


def _scaled(metric: Metric, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return predictions and targets at a scale that torchmetrics can handle.

    Raises:
        UndefinedError: All targets are equal, or a divisor is zero.
    """
    if isinstance(metric, _PERCENTAGES):
        least = targets.abs().min()
        if isinstance(metric, regression.MeanAbsolutePercentageError) and least == 0:
            raise UndefinedError("a target is zero")
        scale = least if least > 0 else targets.abs().max().clamp_min(1e-300)
        return predictions / scale, targets / scale
    for what, values in (("targets", targets), ("predictions", predictions)):
        needed = what == "targets" or isinstance(metric, _CORRELATIONS)
        if needed and bool((values == values[:1]).all(0).any()):
            raise UndefinedError(f"all {what} are equal")
    middle, spread = targets.mean(0), targets.std(0, correction=0)
    return (predictions - middle) / spread, (targets - middle) / spread
