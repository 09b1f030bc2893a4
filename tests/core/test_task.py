"""The tasks' losses and scores, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pfl.core.task import Classification, MultiLabel, Regression


def named(task, outputs, y):
    return dict(zip(task.scores_better, task.scores(outputs, y).tolist(), strict=True))


def test_classification_by_hand():
    """Labels 0 0 1 1, guesses 0 1 1 1 at a probability of 0.7; nobody speaks of class 2.

    F1 of class 0 is 2 (1 * 1/2) / (3/2) = 2/3, of class 1 2 (2/3 * 1) / (5/3) = 4/5. Three of four
    are right at a confidence of 0.7: a calibration error of 0.05.
    """
    probabilities = torch.full((4, 3), 0.15)
    probabilities[torch.arange(4), torch.tensor([0, 1, 1, 1])] = 0.7
    found = named(Classification(), probabilities.log(), torch.tensor([0, 0, 1, 1]))
    assert found == pytest.approx(
        {
            "acc": 3 / 4,
            "loss": -(3 * math.log(0.7) + math.log(0.15)) / 4,
            "f1": (2 / 3 + 4 / 5) / 2,
            "ece": 0.05,
        },
        abs=1e-6,
    )


def test_regression_by_hand():
    """Errors 1, 1, 2 of targets 0, 1, 2, whose own spread is 2/3: R2 = 1 - 2 / (2/3)."""
    outputs, y = torch.tensor([[1.0], [0.0], [4.0]]), torch.tensor([[0.0], [1.0], [2.0]])
    assert named(Regression(), outputs, y) == pytest.approx(
        {"loss": 2.0, "rmse": math.sqrt(2), "mae": 4 / 3, "r2": -2.0}
    )
    assert named(Regression(), outputs, torch.ones(3, 1))["r2"] == 0


def test_multi_label_by_hand():
    """Two samples of two labels, logits of 0.8 or 0.2 each; one label of four is wrong.

    Label 0 has F1 2 (1/2 * 1) / (3/2) = 2/3, label 1 has 1.
    """
    outputs = torch.tensor([[0.8, 0.8], [0.8, 0.2]]).logit()
    y = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert named(MultiLabel(), outputs, y) == pytest.approx(
        {
            "acc": 3 / 4,
            "loss": -(3 * math.log(0.8) + math.log(0.2)) / 4,
            "f1": (2 / 3 + 1) / 2,
            "exact": 1 / 2,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize(
    ("task", "y"),
    [
        (Classification(), torch.tensor([0, 1, 1, 0])),
        (MultiLabel(), torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])),
        (Regression(), torch.tensor([[1.0, 0.0], [3.0, 0.5], [1.0, 1.0], [9.0, 9.0]])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_padding_does_not_count(task, y):
    outputs = torch.tensor([[0.3, -1.0], [0.1, 2.0], [0.0, 0.5], [5.0, -5.0]])
    whole = task.loss(outputs[:3], y[:3])
    assert task.loss(outputs, y, torch.tensor([1.0, 1.0, 1.0, 0.0])).isclose(whole)
    assert task.sample_losses(outputs[:3], y[:3]).mean().isclose(whole)
