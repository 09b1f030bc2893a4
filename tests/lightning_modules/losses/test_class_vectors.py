"""Terms that know each class by one vector, against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import grad

from lightning_modules.losses import (
    angular,
    class_mean_alignment,
    magnitude,
    prototype_mse,
)
from tests.helpers.draws import normal

CLASSES = 4
SIZE = 4
TABLE = normal(CLASSES, SIZE, seed=1)


def test_class_mean_alignment():
    """D = 2. Class 0: squares 1 + 4 and 0 + 1, so 6 / (2*2); class 2: 9 + 0, so 9 / (1*2)."""
    means = torch.tensor([[0.0, 0.0], [7.0, 7.0], [1.0, 1.0]])
    z = torch.tensor([[1.0, 2.0], [4.0, 1.0], [0.0, 1.0]])
    value = class_mean_alignment(z, torch.tensor([0, 2, 0]), means)
    assert float(value) == 6 / 4 + 9 / 2


def test_prototype_mse():
    """D = 2, B = 3: squares 1 + 4, 100 of a class without prototype, 0 + 9: 14 / (3 * 2)."""
    prototypes, present = torch.zeros(2, 2), torch.tensor([1.0, 0.0])
    z = torch.tensor([[1.0, 2.0], [10.0, 0.0], [0.0, 3.0]])
    y = torch.tensor([0, 1, 0])
    assert float(prototype_mse(z, y, prototypes, present)) == pytest.approx(14 / 6)
    slope = grad(prototype_mse)(z, y, prototypes, present)
    torch.testing.assert_close(slope, 2 * z * torch.tensor([[1.0], [0.0], [1.0]]) / 6)
    assert float(prototype_mse(z, y, prototypes, torch.zeros(2))) == 0
    assert float(prototype_mse(z, y, prototypes, torch.tensor([True, False]))) == pytest.approx(
        14 / 6
    )


def test_angular_by_hand():
    """z along the first of two orthogonal embeddings: log(1 + e^-1); opposite both: log 2."""
    table = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    z, y = torch.tensor([[7.0, 0.0]]), torch.tensor([0])
    assert float(angular(z, y, table)) == pytest.approx(math.log1p(math.exp(-1)))
    assert float(angular(-torch.ones(1, 2), y, table)) == pytest.approx(math.log(2))


def test_angular_of_a_zero_feature_has_an_ordinary_slope():
    """Equal cosines 0: the slope is the mean embedding less the own one, (1/2, 1/2) - (1, 0)."""
    slope = grad(angular)(torch.zeros(1, 2), torch.tensor([0]), torch.eye(2))
    assert slope.tolist() == [[-0.5, 0.5]]


def test_magnitude_grows_with_the_root_of_the_batch():
    """GPFL: distances 3 and 4 give 5; four copies of the batch double it."""
    z, y, table = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0]), torch.zeros(1, 2)
    assert float(magnitude(z, y, table)) == pytest.approx(5)
    z, y = z.repeat(4, 1), y.repeat(4)
    assert float(magnitude(z, y, table)) == pytest.approx(10)


def test_magnitude_at_distance_zero_has_a_finite_slope():
    table = TABLE.float()
    y = torch.tensor([0, 3])
    assert grad(magnitude)(table[y], y, table).isfinite().all()
