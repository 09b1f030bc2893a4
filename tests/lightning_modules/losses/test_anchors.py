"""Terms that tie models to models, against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad

from lightning_modules.losses import (
    feature_distillation,
    linear,
    model_contrastive,
    proximal,
    symmetric_kl,
)
from tests.helpers.draws import batch, normal


def test_model_contrastive_by_hand():
    """cos to the global 1, to the previous 0, tau = 0.5: log(1 + e^-2)."""
    z, z_global, z_previous = torch.tensor([[[2.0, 0.0]], [[1.0, 0.0]], [[0.0, 3.0]]])
    value = model_contrastive(z, z_global, z_previous)
    assert float(value) == pytest.approx(math.log(1 + math.exp(-2)))


def test_model_contrastive_of_dead_features_is_finite():
    """A zero vector has cosine zero."""
    zero = torch.zeros(2, 4)
    assert float(model_contrastive(zero, torch.ones(2, 4), zero)) == pytest.approx(math.log(2))
    # softplus'(0) / (tau B) = 1/2, times the unit vector (1/2, ...): ordinary size.
    slope = grad(model_contrastive)(zero, torch.ones(2, 4), zero)
    torch.testing.assert_close(slope, torch.full((2, 4), -0.25))


def test_symmetric_kl():
    """Not negative, symmetric, zero for equal predictions."""
    one, other, _ = batch(5)
    forth = F.kl_div(other.log_softmax(-1), one.softmax(-1), reduction="batchmean")
    back = F.kl_div(one.log_softmax(-1), other.softmax(-1), reduction="batchmean")
    torch.testing.assert_close(symmetric_kl(one, other), (forth + back) / 2)
    torch.testing.assert_close(symmetric_kl(one, other), symmetric_kl(other, one))
    assert float(symmetric_kl(one, one + 3)) == pytest.approx(0, abs=1e-12)
    assert symmetric_kl(torch.tensor([[0.0, 1e4]]), torch.tensor([[1e4, 0.0]])).isfinite()


def test_proximal_is_half_the_squared_distance_and_its_slope_the_distance():
    values, anchors = [normal(3), normal(2, 2, seed=1)], [normal(3, seed=2), normal(2, 2, seed=3)]
    squares = [(v - a).square().sum() for v, a in zip(values, anchors, strict=True)]
    torch.testing.assert_close(proximal(values, anchors), sum(squares) / 2)
    slopes = grad(proximal)(values, anchors)
    for slope, value, anchor in zip(slopes, values, anchors, strict=True):
        torch.testing.assert_close(slope, value - anchor)
    assert not any(s.any() for s in grad(proximal)(values, [v.clone() for v in values]))


def test_linear_has_its_constants_as_slope():
    values, slopes = [normal(3), normal(2, 2, seed=1)], [normal(3, seed=2), normal(2, 2, seed=3)]
    for found, slope in zip(grad(linear)(values, slopes), slopes, strict=True):
        assert torch.equal(found, slope)


def test_feature_distillation():
    """Differences (1, -2), (0, 3): squares sum to 14 over 2 samples and 2 features."""
    z, target = torch.tensor([[1.0, 0.0], [2.0, 3.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    assert float(feature_distillation(z, target)) == 14 / 4
    assert float(feature_distillation(z, target, reduction="sum_dim")) == 14 / 2
