"""Scores of one model, and their summaries over clients, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pfl.training.metrics import NAMES, over_clients, scores


def test_scores_by_hand():
    """Labels 0 0 1 1, guesses 0 1 1 1 at a probability of 0.7; nobody speaks of class 2.

    F1 of class 0 is 2 (1 * 1/2) / (3/2) = 2/3, of class 1 2 (2/3 * 1) / (5/3) = 4/5. Three of four
    are right at a confidence of 0.7: a calibration error of 0.05.
    """
    probabilities = torch.full((4, 3), 0.15)
    probabilities[torch.arange(4), torch.tensor([0, 1, 1, 1])] = 0.7
    found = scores(probabilities.log(), torch.tensor([0, 0, 1, 1])).tolist()
    assert dict(zip(NAMES, found, strict=True)) == pytest.approx(
        {
            "acc": 3 / 4,
            "loss": -(3 * math.log(0.7) + math.log(0.15)) / 4,
            "f1": (2 / 3 + 4 / 5) / 2,
            "ece": 0.05,
        },
        abs=1e-6,
    )


def test_summaries_over_clients_by_hand():
    """Accuracies 0, 0.1, ..., 1 of a sample each, but ten of the last; one client has no samples.

    By samples (4.5 + 10) / 20; the worst tenth of eleven are two; the variance is 120 / 1200.
    """
    accuracies = [number / 10 for number in range(11)]
    rows = [{"acc": acc, "loss": 2 * acc, "f1": 0.5, "ece": 0.1} for acc in (*accuracies, 1.0)]
    assert over_clients(rows, [1] * 10 + [10, 0], "test") == pytest.approx(
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
    assert over_clients(rows, [0] * 12, "test") == {}


def test_means_by_group_leave_out_clients_without_samples():
    """Group a: 0.2 and 0.6, plainly averaged; b: 0.9; the only client of c has no samples."""
    rows = [{"acc": acc, "loss": 0.0, "f1": 0.0, "ece": 0.0} for acc in (0.2, 0.9, 0.6, 0.5)]
    found = over_clients(rows, [1, 5, 3, 0], "test", ["a", "b", "a", "c"])
    by_group = {name: value for name, value in found.items() if "@" in name}
    assert by_group == pytest.approx({"test/acc@a": 0.4, "test/acc@b": 0.9})
