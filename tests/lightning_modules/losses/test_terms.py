"""Terms where their docstrings' examples do not look: other numbers by hand, and steep places."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad

from lightning_modules.losses import (
    angular,
    magnitude,
    model_contrastive,
    monte_carlo_cross_entropy,
    symmetric_kl,
)
from lightning_modules.losses.numerics import at_least_float32, full_precision
from tests.helpers.draws import batch, normal


def test_model_contrastive_by_hand():
    """cos to the global 1, to the previous 0, tau = 0.5: log(1 + e^-2)."""
    z, z_global, z_previous = torch.tensor([[[2.0, 0.0]], [[1.0, 0.0]], [[0.0, 3.0]]])
    value = model_contrastive(z, z_global, z_previous)
    assert float(value) == pytest.approx(math.log(1 + math.exp(-2)))


@given(st.integers(0, 10**6), st.floats(0.05, 2), st.floats(0.01, 100))
@settings(max_examples=50, deadline=None)
def test_model_contrastive_bounds_and_scale(seed, tau, scale):
    z, a, b = normal(3, 4, 4, seed=seed)
    value = model_contrastive(z, a, b, temperature=tau)
    assert math.log1p(math.exp(-2 / tau)) - 1e-9 <= float(value)
    assert float(value) <= math.log1p(math.exp(2 / tau)) + 1e-9
    torch.testing.assert_close(model_contrastive(scale * z, a, b, temperature=tau), value)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_angular_bounds(seed):
    z, _, y = batch(5, seed)
    value = float(angular(z, y, normal(4, 4, seed=seed + 3)))
    assert math.log1p(3 * math.exp(-2)) <= value <= math.log1p(3 * math.exp(2))


def test_monte_carlo_cross_entropy():
    """Draws (0, 0) and (0, log 3) cost log 2 and log 4/3 with label 1, log 2 and log 4 with 0."""
    logits = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.0, math.log(3)], [0.0, math.log(3)]]])
    y = torch.tensor([1, 0])
    first, second = (math.log(2) + math.log(4 / 3)) / 2, (math.log(2) + math.log(4)) / 2
    total = monte_carlo_cross_entropy(logits, y, reduction="sum")
    assert float(total) == pytest.approx(first + second)
    assert float(monte_carlo_cross_entropy(logits, y)) == pytest.approx((first + second) / 2)


def test_symmetric_kl():
    """Not negative, symmetric, zero for equal predictions; finite where they are certain."""
    one, other, _ = batch(5)
    forth = F.kl_div(other.log_softmax(-1), one.softmax(-1), reduction="batchmean")
    back = F.kl_div(one.log_softmax(-1), other.softmax(-1), reduction="batchmean")
    torch.testing.assert_close(symmetric_kl(one, other), (forth + back) / 2)
    torch.testing.assert_close(symmetric_kl(one, other), symmetric_kl(other, one))
    assert float(symmetric_kl(one, one + 3)) == pytest.approx(0, abs=1e-12)
    assert symmetric_kl(torch.tensor([[0.0, 1e4]]), torch.tensor([[1e4, 0.0]])).isfinite()


def test_zero_features_have_slopes_of_ordinary_size():
    """A zero vector has cosine zero with all.

    Contrast: softplus'(0) / (tau B) = 1/2, times the unit vector (1/2, ...). Angles: the mean
    embedding less the own one, (1/2, 1/2) - (1, 0).
    """
    zero, ones = torch.zeros(2, 4), torch.ones(2, 4)
    assert float(model_contrastive(zero, ones, zero)) == pytest.approx(math.log(2))
    slope = grad(model_contrastive)(zero, ones, zero)
    torch.testing.assert_close(slope, torch.full((2, 4), -0.25))
    slope = grad(angular)(torch.zeros(1, 2), torch.tensor([0]), torch.eye(2))
    assert slope.tolist() == [[-0.5, 0.5]]
    table, y = normal(4, 4).float(), torch.tensor([0, 3])
    assert grad(magnitude)(table[y], y, table).isfinite().all()


def test_types_are_raised_and_never_lowered():
    found = {t: at_least_float32(torch.zeros(1, dtype=t)).dtype for t in (torch.half, torch.double)}
    assert found == {torch.half: torch.float32, torch.double: torch.double}
    with torch.autocast("cpu", torch.bfloat16):
        z = torch.rand(3, 3)
        assert (z @ z).dtype == torch.bfloat16
        with full_precision(z):
            assert (z @ z).dtype == torch.float32
