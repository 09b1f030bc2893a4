"""Scores client by client against scikit-learn, and the one rule for those that are undefined.

A client has one row, one class, constant targets, absent labels, or numbers of any scale; a score
that has no value for it is left out of the mean, whether the task's own or an added one.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn import metrics as sk

from pfl.core.task import Binary, Classification, MultiLabel, Regression
from pfl.training.metrics import Scorer

warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
NAN = {"zero_division": np.nan}


def same(found, right):
    """Compare a client's score, absent where scikit-learn has none."""
    if right is None or not math.isfinite(right):
        assert found is None
    else:
        assert found == pytest.approx(right, rel=1e-5, abs=1e-9)


def numbers(scale, offset, rows, constant=False):
    rng = np.random.default_rng(rows)
    y = np.full(rows, offset) if constant else offset + scale * rng.normal(size=rows)
    guess = (y + 0.3 * scale * rng.normal(size=rows)).astype(np.float32)
    return guess.astype(np.float64), y


REGRESSION = {
    "torchmetrics.R2Score": sk.r2_score,
    "torchmetrics.ExplainedVariance": sk.explained_variance_score,
    "torchmetrics.PearsonCorrCoef": lambda y, p: stats.pearsonr(p, y).statistic,
    "torchmetrics.SpearmanCorrCoef": lambda y, p: stats.spearmanr(p, y).statistic,
    "torchmetrics.KendallRankCorrCoef": lambda y, p: stats.kendalltau(p, y).statistic,
    "torchmetrics.RelativeSquaredError": lambda y, p: 1 - sk.r2_score(y, p),
    "torchmetrics.MeanSquaredError": sk.mean_squared_error,
    "torchmetrics.MeanAbsoluteError": sk.mean_absolute_error,
    "torchmetrics.MeanAbsolutePercentageError": sk.mean_absolute_percentage_error,
}
# The scores that need targets that differ.
NEED_SPREAD = ("r2", "explained", "pearson", "spearman", "kendall", "relative")


@pytest.mark.parametrize(
    ("scale", "offset"), [(1, 0), (1e-4, 0), (1e-8, 3e-7), (3, 2e7), (1e6, 0), (1e-3, 100)]
)
@pytest.mark.parametrize(("rows", "constant"), [(40, False), (2, False), (1, False), (7, True)])
def test_regression_is_scikit_learns_at_any_scale(scale, offset, rows, constant):
    guess, y = numbers(scale, offset, rows, constant)
    scorer = Scorer(Regression(), 1, [*REGRESSION])
    outputs = torch.from_numpy(guess).float()[:, None]
    (found,) = scorer.scores([(outputs, torch.from_numpy(y)[:, None])])
    defined = len(np.unique(y)) > 1
    same(found["loss"], sk.mean_squared_error(y, guess))
    same(found["rmse"], sk.root_mean_squared_error(y, guess))
    same(found["mae"], sk.mean_absolute_error(y, guess))
    same(found.get("r2"), sk.r2_score(y, guess) if defined else None)
    for path, score in REGRESSION.items():
        (name,) = (n for n in scorer.added if n.replace("_", "") in path.lower().replace(".", ""))
        if not defined and name.startswith(NEED_SPREAD):
            assert name not in found, name
        elif name == "mean_absolute_percentage_error" and (y == 0).any():
            assert name not in found
        else:
            same(found.get(name), score(y, guess))


CLASSES = {
    "two of three": [0, 0, 1, 1, 0, 1],
    "all": [0, 1, 2, 2, 1, 0],
    "one class": [1, 1, 1, 1, 1, 1],
    "one row": [2],
}
MULTICLASS = {
    "Accuracy": lambda y, p, _: sk.recall_score(y, p, average="macro", labels=[*{*y}]),
    "Precision": lambda y, p, c: sk.precision_score(y, p, average="macro", labels=c, **NAN),
    "Recall": lambda y, p, c: sk.recall_score(y, p, average="macro", labels=c, **NAN),
    "F1Score": lambda y, p, c: sk.f1_score(y, p, average="macro", labels=c, **NAN),
    "JaccardIndex": lambda y, p, _: sk.jaccard_score(y, p, average="macro"),
    "MatthewsCorrCoef": lambda y, p, _: (
        None if 1 in (len({*y}), len({*p})) else sk.matthews_corrcoef(y, p)
    ),
    "CohenKappa": lambda y, p, _: (
        None if 1 in (len({*y}), len({*p})) else sk.cohen_kappa_score(y, p)
    ),
}


@pytest.mark.parametrize("case", CLASSES)
@pytest.mark.parametrize("scale", [1e-3, 1, 100])
def test_means_over_classes_leave_out_those_without_a_score(case, scale):
    y = np.array(CLASSES[case])
    logits = scale * np.random.default_rng(3).normal(size=(len(y), 3))
    guess = logits.argmax(1)
    added = [
        {"metric": f"torchmetrics.{name}"} | ({"average": "macro"} if n < 5 else {})
        for n, name in enumerate(MULTICLASS)
    ]
    scorer = Scorer(Classification(), 3, added)
    (found,) = scorer.scores([(torch.from_numpy(logits).float(), torch.from_numpy(y))])
    assert found["acc"] == pytest.approx((guess == y).mean())
    losses = -special.log_softmax(logits, axis=1)[np.arange(len(y)), y]
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    for name, (_, score) in zip(scorer.added, MULTICLASS.items(), strict=True):
        same(found.get(name), score(y, guess, [0, 1, 2]))


@pytest.mark.parametrize(
    ("y", "guess", "undefined"),
    [
        ([0, 1, 1, 0], [0, 1, 0, 1], ()),
        ([1, 1, 1], [1, 1, 0], ("specificity", "auroc", "auprc", "matthews_corr_coef")),
        ([0, 0], [0, 1], ("sensitivity", "f1", "auroc", "auprc", "matthews_corr_coef")),
        ([0, 1], [0, 0], ("precision", "matthews_corr_coef")),
        ([1], [1], ("specificity", "auroc", "auprc", "matthews_corr_coef")),
    ],
)
def test_scores_of_a_positive_class(y, guess, undefined):
    scorer = Scorer(Binary(), 2, ["torchmetrics.Precision", "torchmetrics.MatthewsCorrCoef"])
    logits = torch.nn.functional.one_hot(torch.tensor(guess), 2).float() * 3
    (found,) = scorer.scores([(logits, torch.tensor(y))])
    assert {*scorer.added} - {*found} == {*undefined}
    if "precision" in found:
        assert found["precision"] == pytest.approx(sk.precision_score(y, guess))
    if "auroc" in found:
        assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, guess))
    summary = scorer.over_clients([found], [len(y)], "test")
    assert summary["test/auroc_clients"] == ("auroc" in found)


@pytest.mark.parametrize(
    ("y", "guess"),
    [
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [1, 1, 0]]),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 1], [1, 1, 0]]),
        ([[0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]),
        ([[0, 1, 1]], [[0, 1, 0]]),
    ],
)
def test_labels_that_are_neither_present_nor_predicted_have_no_f1(y, guess):
    logits = torch.tensor(guess).float() * 6 - 3
    scorer = Scorer(MultiLabel(), 3, [{"metric": "torchmetrics.F1Score", "average": "macro"}])
    (found,) = scorer.scores([(logits, torch.tensor(y).float())])
    right = sk.f1_score(y, guess, average="macro", **NAN)
    same(found.get("f1"), right)
    same(found.get("f1_score"), right)
    assert found["acc"] == pytest.approx((np.array(y) == np.array(guess)).mean())
