"""Terms that fit predictions to labels, against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_modules.losses import monte_carlo_cross_entropy
from tests.helpers.draws import normal


def test_monte_carlo_cross_entropy():
    """Draws (0, 0) and (0, log 3) cost log 2 and log 4/3 with label 1, log 2 and log 4 with 0."""
    logits = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.0, math.log(3)], [0.0, math.log(3)]]])
    y = torch.tensor([1, 0])
    first, second = (math.log(2) + math.log(4 / 3)) / 2, (math.log(2) + math.log(4)) / 2
    total = monte_carlo_cross_entropy(logits, y, reduction="sum")
    assert float(total) == pytest.approx(first + second)
    assert float(monte_carlo_cross_entropy(logits, y)) == pytest.approx((first + second) / 2)


def test_doubling_the_data_doubles_the_summed_likelihood_only():
    logits, y = normal(3, 5, 4), torch.tensor([0, 1, 2, 3, 0])
    twice = monte_carlo_cross_entropy(logits.repeat(1, 2, 1), y.repeat(2), reduction="sum")
    once = monte_carlo_cross_entropy(logits, y, reduction="sum")
    torch.testing.assert_close(twice, 2 * once)
