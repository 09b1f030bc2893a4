"""Terms that fit predictions to labels, against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_modules.losses import monte_carlo_cross_entropy


def test_monte_carlo_cross_entropy():
    """Draws (0, 0) and (0, log 3) cost log 2 and log 4/3 with label 1, log 2 and log 4 with 0."""
    logits = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.0, math.log(3)], [0.0, math.log(3)]]])
    y = torch.tensor([1, 0])
    first, second = (math.log(2) + math.log(4 / 3)) / 2, (math.log(2) + math.log(4)) / 2
    total = monte_carlo_cross_entropy(logits, y, reduction="sum")
    assert float(total) == pytest.approx(first + second)
    assert float(monte_carlo_cross_entropy(logits, y)) == pytest.approx((first + second) / 2)
