"""Scores of one model, and their summaries over clients, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_f1_score,
)

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 2**31), samples=st.integers(1, 60), classes=st.integers(2, 9))
def test_scores_are_those_of_torchmetrics(dtype, seed, samples, classes):
    """Bit for bit in single precision, which is all that it computes in."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=rng, dtype=dtype)
    labels = torch.randint(0, classes, (samples,), generator=rng)
    found = scores(logits, labels)
    assert found.dtype == dtype
    options = {"num_classes": classes, "validate_args": False}
    expected = torch.stack(
        [
            multiclass_accuracy(logits, labels, average="micro", **options),
            torch.nn.functional.cross_entropy(logits, labels),
            multiclass_f1_score(logits, labels, average="macro", **options),
            multiclass_calibration_error(logits.softmax(-1), labels, **options),
        ]
    )
    if dtype == torch.float32:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=1e-6)


def test_scores_of_double_precision_are_exact_to_its_digits():
    """Two of three right, and a confidence of 1 / (1 + 1 / e) in all of them."""
    logits = torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64)
    acc, _, f1, ece = scores(logits, torch.tensor([0, 0, 1])).tolist()
    assert acc == pytest.approx(2 / 3, rel=1e-15)
    assert f1 == pytest.approx(2 * 2 / 5 / 2, rel=1e-15)
    assert ece == pytest.approx(1 / (1 + math.exp(-1)) - 2 / 3, rel=1e-13)


def test_a_row_that_is_not_finite_counts_as_a_uniform_guess():
    """Of class 0, as torch's argmax has it for the logits."""
    logits = torch.tensor([[math.nan, 0.0], [0.0, 9.0]])
    acc, loss, _, ece = scores(logits, torch.tensor([1, 1])).tolist()
    assert (acc, math.isnan(loss)) == (0.5, True)
    assert ece == pytest.approx((0.5 + 1 / (1 + math.exp(9))) / 2, abs=1e-4)


def test_means_by_group_leave_out_clients_without_samples():
    """Group a: 0.2 and 0.6, plainly averaged; b: 0.9; the only client of c has no samples."""
    rows = [{"acc": acc, "loss": 0.0, "f1": 0.0, "ece": 0.0} for acc in (0.2, 0.9, 0.6, 0.5)]
    found = over_clients(rows, [1, 5, 3, 0], "test", ["a", "b", "a", "c"])
    by_group = {name: value for name, value in found.items() if "@" in name}
    assert by_group == pytest.approx({"test/acc@a": 0.4, "test/acc@b": 0.9})
