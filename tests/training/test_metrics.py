"""Scores that a user adds, and summaries over clients, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pfl.core.task import Classification, Regression
from pfl.training.metrics import Scorer
from tests.helpers.messages import parts

AUROC = "torchmetrics.AUROC"


def test_summaries_over_clients_by_hand():
    """Accuracies 0, 0.1, ..., 1 of a sample each, but ten of the last; one client has no samples.

    By samples (4.5 + 10) / 20; the worst tenth of eleven are two; the variance is 120 / 1200.
    """
    accuracies = [number / 10 for number in range(11)]
    rows = [{"acc": acc, "loss": 2 * acc, "f1": 0.5, "ece": 0.1} for acc in (*accuracies, 1.0)]
    scorer = Scorer(Classification(), 2)
    assert scorer.over_clients(rows, [1] * 10 + [10, 0], "test") == pytest.approx(
        {
            "test/acc": 0.5,
            "test/loss": 1.0,
            "test/f1": 0.5,
            "test/ece": 0.1,
            "test/acc_weighted": 0.725,
            "test/acc_worst10": 0.05,
            "test/acc_std": math.sqrt(0.1),
        }
    )
    assert scorer.over_clients(rows, [0] * 12, "test") == {}


def test_the_worst_tenth_follows_the_direction_of_the_score():
    """The loss comes first in regression: the worst client is the one with most of it."""
    rows = [{"loss": value, "rmse": 0.0, "mae": 0.0, "r2": 0.0} for value in (1.0, 4.0, 2.0)]
    found = Scorer(Regression(), 1).over_clients(rows, [1, 1, 1], "test")
    assert found["test/loss_worst10"] == 4.0


def test_the_area_under_the_curve_is_a_mean_over_classes_that_can_be_ranked(recwarn):
    """Class 2 has no sample. Of class 0 the pairs 0.8 > 0.3 and 0.2 < 0.3: 1/2; of class 1, 1/2.

    That a client lacks a class is usual, and torchmetrics' warning of it not shown.
    """
    probabilities = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.6, 0.1]])
    scorer = Scorer(Classification(), 3, [{"metric": AUROC, "name": "area"}])
    (found,) = scorer.scores([(probabilities.log(), torch.tensor([0, 0, 1]))])
    assert found["area"] == pytest.approx(0.5)
    assert list(found) == ["acc", "loss", "f1", "ece", "area"]
    assert not recwarn.list


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("os.system", "'os.system' ~ torchmetrics.Metric"),
        ("AUROC", "'AUROC' ~ torchmetrics.Metric ~ torchmetrics.AUROC"),
        ("torchmetrics.NoSuch", "'torchmetrics.NoSuch' ~ torchmetrics.Metric"),
        ({"metric": AUROC, "wings": 2}, "torchmetrics.AUROC ~ wings"),
        ({"name": "x"}, "metrics ~ {'name': 'x'} ~ metric"),
        ({"metric": AUROC, "name": "acc"}, "two ~ 'acc' ~ name:"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(spec, says):
    with pytest.raises(ValueError, match=parts(says)):
        Scorer(Classification(), 3, [spec])


def test_means_by_group_leave_out_clients_without_samples():
    """Group a: 0.2 and 0.6, plainly averaged; b: 0.9; the only client of c has no samples."""
    rows = [{"acc": acc, "loss": 0.0, "f1": 0.0, "ece": 0.0} for acc in (0.2, 0.9, 0.6, 0.5)]
    found = Scorer(Classification(), 2).over_clients(
        rows, [1, 5, 3, 0], "test", ["a", "b", "a", "c"]
    )
    by_group = {name: value for name, value in found.items() if "@" in name}
    assert by_group == pytest.approx({"test/acc@a": 0.4, "test/acc@b": 0.9})


def test_a_metric_that_fails_is_named_in_one_line():
    """Its operator is no function."""
    path = "torchmetrics.metric.CompositionalMetric"
    spec = {"metric": path, "operator": "sum", "metric_a": 0.0, "metric_b": 0.0}
    with pytest.raises(ValueError, match=parts("metric CompositionalMetric cannot ~ TypeError")):
        Scorer(Classification(), 2, [spec])


class Pixels(Classification):
    """A class of each pixel, whose outputs cannot be made up from their number."""

    def predictions(self, outputs):
        return super().predictions(outputs.movedim(1, 3).flatten(0, 2))

    def targets(self, y):
        return y.flatten()


def test_a_task_with_outputs_of_its_own_takes_metrics_and_meets_them_at_the_first_test():
    """Two images of 2 x 2 pixels, of which one of eight is wrong."""
    y = torch.tensor([[[0, 1], [1, 0]], [[1, 1], [0, 0]]])
    guess = y.clone()
    guess[0, 0, 0] = 1
    outputs = 9.0 * torch.nn.functional.one_hot(guess, 2).movedim(3, 1)
    spec = {"metric": "torchmetrics.Accuracy", "average": "micro", "name": "right"}
    (name,) = Scorer(Pixels(), 2, [spec]).added
    assert name == "right"
    metric = Scorer(Pixels(), 2, [spec])._metrics["right"]
    assert metric.value(Pixels().predictions(outputs), Pixels().targets(y)) == 7 / 8
