"""Scores client by client against scikit-learn: its numbers count, zeros included.

A client has one row, one class, constant targets, absent labels, or numbers of any scale, and its
model may predict one class only. A score that has no value for the targets is left out of the mean,
whether the task's own or an added one.
"""

from __future__ import annotations

import math
import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torchmetrics
from scipy import stats
from sklearn import metrics as sk

from pfl.core.forecast import Forecast
from pfl.core.task import Binary, Classification, MultiLabel, Regression
from pfl.training.defined import RULES
from pfl.training.metrics import Scorer
from tests.helpers.messages import parts

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


# scikit-learn's scores of a positive class. Each gives NaN for 0 / 0 on request.
OF_A_CLASS = {
    "Precision": sk.precision_score,
    "Recall": sk.recall_score,
    "F1Score": sk.f1_score,
    "FBetaScore": partial(sk.fbeta_score, beta=2.0),
    "JaccardIndex": sk.jaccard_score,
    "Specificity": lambda y, p, **how: sk.recall_score(1 - y, 1 - p, **how),
    "NegativePredictiveValue": lambda y, p, **how: sk.precision_score(1 - y, 1 - p, **how),
}
OF_A_RANKING = {"AUROC": sk.roc_auc_score, "AveragePrecision": sk.average_precision_score}
OPTIONS = {"FBetaScore": {"beta": 2.0}}
AVERAGES = ("micro", "macro", "weighted")


def share(score, y, p):
    """Return a score of 0-1 vectors; 0 / 0 is zero unless right guesses have no score either."""
    found = score(y, p, **NAN)
    return 0.0 if math.isnan(found) and not math.isnan(score(y, y, **NAN)) else found


def ranking(score, y, p):
    lacks = not y.any() or (score is sk.roc_auc_score and y.all())
    return math.nan if lacks else score(y, p)


def jaccard(y, p, **how):
    """scikit-learn's takes no NaN for 0 / 0."""
    return sk.jaccard_score(y, p) if (y | p).any() else math.nan


OF_A_CLASS["JaccardIndex"] = jaccard


def averaged(score, y, p, average):
    """Return the mean over the columns of (n, K) truths and guesses."""
    if average == "micro":
        return score(y.ravel(), p.ravel())
    values = np.array([score(y[:, k], p[:, k]) for k in range(y.shape[1])])
    weights = y.sum(0) if average == "weighted" else np.ones(y.shape[1])
    weights = np.where(np.isnan(values), 0, weights)
    return (np.nan_to_num(values) * weights).sum() / weights.sum() if weights.sum() else math.nan


def kappa(y, p):
    return sk.cohen_kappa_score(y, p) if len({*y} | {*p}) > 1 else math.nan


def one_hot(labels, classes):
    return np.eye(classes, dtype=int)[labels]


class Kind:
    """A task with scores of torchmetrics, and the same scores by scikit-learn.

    ``right`` takes truths and guesses of whole numbers, (n,) or (n, L), and gives each score.
    """

    def __init__(self, task, outputs):
        self.task, self.outputs, self.right = task, outputs, {}
        self.specs = []

    def add(self, metric, right, **options):
        # The word of the task makes the metric one of three.
        name = "_".join([metric, *map(str, options.values())]).lower()
        self.specs.append({"metric": f"torchmetrics.{metric}", "name": f"my_{name}", **options})
        self.right[f"my_{name}"] = right

    def scorer(self):
        return Scorer(self.task, self.outputs, self.specs)

    def model(self, y, p):
        """Return outputs that predict p, and targets."""
        multilabel = isinstance(self.task, MultiLabel)
        # So far apart that probabilities are 0 and 1, and equal ones tie.
        logits = 2000.0 * p - 1000 if multilabel else 1000.0 * one_hot(p, self.outputs)
        return torch.tensor(logits), torch.tensor(y).float() if multilabel else torch.tensor(y)


def binary():
    kind = Kind(Binary(), 2)
    for name, score in OF_A_CLASS.items():
        if name != "NegativePredictiveValue":
            kind.add(name, partial(share, score), **OPTIONS.get(name, {}))
    for name, score in OF_A_RANKING.items():
        kind.add(name, partial(ranking, score))
    kind.add("MatthewsCorrCoef", sk.matthews_corrcoef)
    kind.add("CohenKappa", kappa)
    kind.add("Accuracy", sk.accuracy_score)
    kind.add("classification.BinaryNegativePredictiveValue", partial(share, OF_A_CLASS[LAST]))
    return kind


LAST = "NegativePredictiveValue"


def multiclass(classes=4):
    kind = Kind(Classification(), classes)
    hot = partial(one_hot, classes=classes)

    def mean(score, average, y, p):
        if average == "micro" and score in (OF_A_CLASS["Specificity"], OF_A_CLASS[LAST]):
            return share(score, hot(y).ravel(), hot(p).ravel())
        return averaged(partial(share, score), hot(y), hot(p), average)

    for name, score in OF_A_CLASS.items():
        path = f"classification.Multiclass{name}" if name == LAST else name
        for average in AVERAGES:
            options = {**OPTIONS.get(name, {}), "average": average}
            kind.add(path, partial(mean, score, average), **options)
    for name, score in OF_A_RANKING.items():
        for average in AVERAGES[1:]:
            one = partial(ranking, score)
            right = lambda y, p, one=one, average=average: averaged(one, hot(y), hot(p), average)  # noqa: E731
            kind.add(name, right, average=average)
    kind.add("Accuracy", lambda y, p: sk.accuracy_score(y, p), average="micro")
    kind.add("Accuracy", sk.balanced_accuracy_score, average="macro")
    kind.add("HammingDistance", lambda y, p: 1 - sk.balanced_accuracy_score(y, p), average="macro")
    kind.add("MatthewsCorrCoef", sk.matthews_corrcoef)
    kind.add("CohenKappa", kappa)
    return kind


def multilabel(labels=3):
    kind = Kind(MultiLabel(), labels)
    for name, score in OF_A_CLASS.items():
        path = f"classification.Multilabel{name}" if name == LAST else name
        for average in AVERAGES:
            options = {**OPTIONS.get(name, {}), "average": average}
            kind.add(path, partial(averaged, partial(share, score), average=average), **options)
    for name, score in OF_A_RANKING.items():
        for average in AVERAGES:
            one = partial(averaged, partial(ranking, score), average=average)
            kind.add(name, one, average=average)
    kind.add("MatthewsCorrCoef", lambda y, p: sk.matthews_corrcoef(y.ravel(), p.ravel()))
    kind.add("Accuracy", lambda y, p: (y == p).mean())
    kind.add("ExactMatch", sk.accuracy_score)
    return kind


KINDS = {"binary": binary, "multiclass": multiclass, "multilabel": multilabel}


def clients(kind, rng, count):
    """Draw truths and guesses of clients: few samples, often of few classes, right more or less."""
    classes = 2 if isinstance(kind.task, Binary | MultiLabel) else kind.outputs
    for _ in range(count):
        shape = rng.integers(1, 12)
        if isinstance(kind.task, MultiLabel):
            shape = (shape, kind.outputs)
        held = rng.choice(classes, size=rng.integers(1, classes + 1), replace=False)
        y = rng.choice(held, size=shape)
        noise = rng.integers(0, classes, size=shape)
        yield y, np.where(rng.random(shape) < rng.choice([0.3, 0.7, 1.0]), y, noise)


def collapsed(y, p, constant):
    """Return the guesses with a constant in the place of those that are right."""
    return np.where(y == p, constant, p)


@pytest.mark.parametrize("name", KINDS)
def test_scores_are_scikit_learns_zeros_included(name):
    kind, rng = KINDS[name](), np.random.default_rng(11)
    scorer = kind.scorer()
    draws = list(clients(kind, rng, 24))
    # Models that predict one class whatever they see, as well.
    draws += [(y, np.full_like(p, constant)) for y, p in draws[:8] for constant in (0, 1)]
    rows = scorer.scores([kind.model(*draw) for draw in draws])
    summary = scorer.over_clients(rows, [len(y) for y, _ in draws], "test")
    for score, right in kind.right.items():
        expected = [right(y, p) for y, p in draws]
        found = [row.get(score, math.nan) for row in rows]
        assert found == pytest.approx(expected, abs=2e-6, nan_ok=True), score
        values = [value for value in expected if not math.isnan(value)]
        assert summary[f"test/{score}"] == pytest.approx(np.mean(values), abs=1e-6)
        assert summary[f"test/{score}_clients"] == len(values)


# Scores of which a client's own may rise, as guesses may be worse than chance, or (kappa) right
# guesses of one class have none.
BY_CHANCE = ("auroc", "averageprecision", "matthewscorrcoef", "cohenkappa")


@pytest.mark.parametrize("name", KINDS)
def test_a_constant_in_the_place_of_right_guesses_never_raises_the_mean(name):
    """Of no score, added or the task's own: no model leaves the mean by its own guesses."""
    kind, rng = KINDS[name](), np.random.default_rng(5)
    scorer = kind.scorer()
    better = {score: more for score, more in scorer.better.items() if score not in ("loss", "ece")}
    better.pop("brier", None)
    assert len(better) > 12
    fell = dict.fromkeys(better, 0)
    for _ in range(30):
        draws = list(clients(kind, rng, 3))
        rows = scorer.scores([kind.model(*draw) for draw in draws])
        sizes = [len(y) for y, _ in draws]
        before = scorer.over_clients(rows, sizes, "test")
        y, p = draws[0]
        for constant in range(2 if isinstance(kind.task, MultiLabel) else kind.outputs):
            (row,) = scorer.scores([kind.model(y, collapsed(y, p, constant))])
            after = scorer.over_clients([row, *rows[1:]], sizes, "test")
            for score, more in better.items():
                one, other = before.get(f"test/{score}"), after.get(f"test/{score}")
                by_chance = any(word in score.replace("_", "") for word in BY_CHANCE)
                own = rows[0].get(score, -math.inf)
                if one is None or (by_chance and row.get(score, -math.inf) > own):
                    continue
                assert other is not None, (score, draws, constant)
                worse = one - other if more else other - one
                assert worse >= -1e-6, (score, draws, constant)
                fell[score] += worse > 1e-6
    # It was tried in earnest.
    assert min(fell.values()) > 0, fell


def test_a_model_that_predicts_one_class_counts_with_its_zeros():
    """Four of five clients: (0.8 + 4 * 0) / 5 of kappa and MCC, (0.9 + 4 * 0.25) / 5."""
    paths = {"kappa": "CohenKappa", "mcc": "MatthewsCorrCoef", "precision": "Precision"}
    specs = [{"metric": f"torchmetrics.{path}", "name": name} for name, path in paths.items()]
    specs[2]["average"] = "macro"
    scorer = Scorer(Classification(), 2, specs)
    y = torch.tensor([0, 1] * 10)
    good = y.clone()
    good[:2] = 1 - good[:2]
    guesses = [good, *[torch.zeros_like(y)] * 4]
    rows = scorer.scores([(8.0 * torch.nn.functional.one_hot(p, 2), y) for p in guesses])
    found = scorer.over_clients(rows, [20] * 5, "test")
    assert found["test/kappa"] == pytest.approx(0.16)
    assert found["test/mcc"] == pytest.approx(0.16)
    assert found["test/precision"] == pytest.approx(0.38)
    assert found["test/kappa_clients"] == found["test/precision_clients"] == 5


def test_a_correlation_with_equal_predictions_is_zero():
    """As scikit-learn's r_regression has it; with equal targets there is none."""
    paths = [path for path in REGRESSION if "Corr" in path] + ["torchmetrics.ConcordanceCorrCoef"]
    scorer = Scorer(Regression(), 1, paths)
    y = torch.tensor([[1.0], [2.0], [4.0]])
    (flat, one) = scorer.scores([(torch.full_like(y, 3.0), y), (y, torch.full_like(y, 3.0))])
    assert [flat[name] for name in scorer.added] == [0.0] * len(paths)
    assert not {*scorer.added} & {*one}


@pytest.mark.parametrize("constant", [(), (1,), (0, 1, 2)])
def test_scores_of_several_targets_are_means_over_those_that_vary(constant):
    """A target may be in other units than the next."""
    rng = np.random.default_rng(2)
    y = rng.normal(size=(30, 3)) * [1, 100, 1e-3] + [0, 5, 1]
    y[:, list(constant)] = 7.0
    guess = y + rng.normal(size=(30, 3)) * [0.5, 20, 2e-4]
    vary = [k for k in range(3) if k not in constant]
    weighted = {"metric": "torchmetrics.R2Score", "multioutput": "variance_weighted", "name": "vw"}
    added = [*REGRESSION, "torchmetrics.ConcordanceCorrCoef", weighted]
    scorer = Scorer(Regression(), 3, added)
    (found,) = scorer.scores([(torch.from_numpy(guess), torch.from_numpy(y))])
    assert found["loss"] == pytest.approx(sk.mean_squared_error(y, guess))
    assert found["mean_squared_error"] == pytest.approx(found["loss"])
    assert found["mean_absolute_error"] == pytest.approx(sk.mean_absolute_error(y, guess))
    if not vary:
        assert not {"r2", "r2_score", "pearson_corr_coef", "vw"} & {*found}
        return
    y, guess = y[:, vary], guess[:, vary]
    r2 = sk.r2_score(y, guess)
    assert found["r2"] == found["r2_score"] == pytest.approx(r2)
    assert found["relative_squared_error"] == pytest.approx(1 - r2)
    explained = sk.explained_variance_score(y, guess)
    assert found["explained_variance"] == pytest.approx(explained)
    assert found["vw"] == pytest.approx(sk.r2_score(y, guess, multioutput="variance_weighted"))
    columns = list(zip(guess.T, y.T, strict=True))
    for name, one in (
        ("pearson_corr_coef", stats.pearsonr),
        ("kendall_rank_corr_coef", stats.kendalltau),
    ):
        assert found[name] == pytest.approx(np.mean([one(*both).statistic for both in columns]))


@pytest.mark.parametrize(
    ("task", "outputs", "spec", "says"),
    [
        (Classification(), 3, "torchmetrics.R2Score", "R2Score ~ Classification ~ labels ~ AUROC"),
        (Binary(), 2, "torchmetrics.R2Score", "R2Score ~ Binary ~ labels ~ AUROC"),
        (MultiLabel(), 3, "torchmetrics.PearsonCorrCoef", "Pearson ~ MultiLabel ~ labels"),
        (Classification(), 3, "torchmetrics.MeanSquaredError", "MeanSquared ~ Classification"),
        (Regression(), 1, "torchmetrics.classification.BinaryAccuracy", "Accuracy ~ R2Score"),
        (Regression(), 1, "torchmetrics.AUROC", "AUROC ~ built ~ R2Score"),
        (Binary(), 2, "torchmetrics.MeanMetric", "MeanMetric ~ Binary ~ compares nothing"),
        (Classification(), 3, "torchmetrics.ConfusionMatrix", "fit ~ 9 numbers ~ one"),
        (Binary(), 2, "torchmetrics.ROC", "ROC ~ fit ~ tuple ~ one number"),
        (
            Classification(),
            3,
            {"metric": "torchmetrics.Precision", "average": "none"},
            "Precision ~ 3 numbers",
        ),
        (
            Classification(),
            3,
            {"metric": "torchmetrics.Recall", "multidim_average": "samplewise"},
            "Recall ~ each sample",
        ),
        (
            Regression(),
            2,
            {"metric": "torchmetrics.R2Score", "multioutput": "raw_values"},
            "R2Score ~ 2 numbers",
        ),
        (MultiLabel(), 3, "torchmetrics.image.TotalVariation", "TotalVariation ~ MultiLabel"),
    ],
)
def test_a_metric_that_does_not_fit_the_targets_is_refused_before_a_round(
    task, outputs, spec, says
):
    with pytest.raises(ValueError, match=parts(says)) as caught:
        Scorer(task, outputs, [spec])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("task", "outputs", "specs"),
    [
        (Binary(), 2, ["torchmetrics.MeanSquaredError", "torchmetrics.CalibrationError"]),
        (Classification(), 20, ["torchmetrics.CohenKappa", "torchmetrics.HingeLoss"]),
        (MultiLabel(), 5, ["torchmetrics.classification.MultilabelRankingLoss"]),
        (Regression(), 3, [*REGRESSION, "torchmetrics.CosineSimilarity"]),
        (Regression(quantiles=(0.1, 0.5, 0.9)), 6, ["torchmetrics.R2Score"]),
        (Forecast(), 2, ["torchmetrics.R2Score"]),
    ],
)
def test_what_gives_a_number_of_the_targets_is_taken(task, outputs, specs):
    assert len(Scorer(task, outputs, specs).added) >= len(specs)


class Lift(torchmetrics.Metric):
    """Precision over the share of positives: no number without a positive target or guess."""

    higher_is_better = True

    def __init__(self):
        super().__init__()
        self.add_state("counts", torch.zeros(4), dist_reduce_fx="sum")

    def update(self, preds, target):
        guess, truth = preds > 0.5, target > 0
        found = (guess & truth).sum(), guess.sum(), truth.sum(), torch.tensor(len(truth))
        self.counts += torch.stack(found)

    def compute(self):
        hits, guessed, positives, count = self.counts
        return (hits / guessed) / (positives / count)


def test_a_metric_without_a_rule_is_zero_where_right_guesses_have_a_value():
    scorer = Scorer(Binary(), 2, [f"{__name__}.Lift"])
    y, none = torch.tensor([0, 1, 0, 0]), torch.zeros(4, dtype=torch.long)

    def lift(guess, truth):
        logits = 9.0 * torch.nn.functional.one_hot(guess, 2)
        return scorer.scores([(logits, truth)])[0].get("lift")

    assert lift(y, y) == 4
    assert lift(none, y) == 0
    assert lift(none, none) is None
    assert lift(y, none) is None


def test_associations_of_one_class_are_zero():
    scorer = Scorer(Classification(), 3, ["torchmetrics.nominal.CramersV"])
    y = torch.tensor([0, 1, 2] * 5)
    (flat, one) = scorer.scores(
        [(torch.tensor([[9.0, 0.0, 0.0]] * 15), y), (torch.eye(3)[y], torch.zeros_like(y))]
    )
    assert flat["cramers_v"] == 0
    assert "cramers_v" not in one or one["cramers_v"] == 0


def rows_of_rules():
    """Return the rows of the table of zeros, as docs/scores.md shows it."""
    for rule in RULES:
        scores = ", ".join(f"`{score}`" for score in rule.scores)
        yield f"| {scores} | {rule.zero or '-'} | {rule.undefined or 'never'} |"


def test_the_page_has_the_table_of_zeros():
    page = (Path(__file__).parents[2] / "docs" / "scores.md").read_text(encoding="utf-8")
    shown = re.search(r"\| metric \| zero if .*\n\|[ -|]+\n((?:\|.*\n)+)", page)
    assert shown
    assert shown[1].splitlines() == [*rows_of_rules()]


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
