"""Small operations on tensors, against hand-worked numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from lightning_modules.losses.numerics import at_least_float32, full_precision, one_hot, unit
from tests.helpers.draws import normal


def test_one_hot_matches_torch():
    y = torch.tensor([[0, 3, 1], [2, 2, 0]])
    for row, found in zip(y, vmap(lambda y: one_hot(y, 4, torch.zeros(0)))(y), strict=True):
        assert torch.equal(found, F.one_hot(row, 4).float())


def test_unit_is_normalize_away_from_zero():
    z = normal(5, 3)
    torch.testing.assert_close(unit(z), F.normalize(z, dim=-1))
    slope = grad(lambda z: unit(z).pow(3).sum())(z)
    torch.testing.assert_close(slope, grad(lambda z: F.normalize(z, dim=-1).pow(3).sum())(z))


def test_unit_of_a_zero_row_is_the_identity():
    """A row of zeros stays, and its gradient passes as it is: (1, 2), not 1e12 times that."""
    zero, direction = torch.zeros(1, 2), torch.tensor([[1.0, 2.0]])
    assert unit(zero).tolist() == [[0.0, 0.0]]
    assert grad(lambda z: (unit(z) * direction).sum())(zero).tolist() == [[1.0, 2.0]]


def test_types_are_raised_and_never_lowered():
    found = {t: at_least_float32(torch.zeros(1, dtype=t)).dtype for t in (torch.half, torch.double)}
    assert found == {torch.half: torch.float32, torch.double: torch.double}
    with torch.autocast("cpu", torch.bfloat16):
        z = torch.rand(3, 3)
        assert (z @ z).dtype == torch.bfloat16
        with full_precision(z):
            assert (z @ z).dtype == torch.float32
