"""KL divergences between Gaussians, against hand-worked numbers and torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence
from torch.func import grad

from lightning_modules.losses import gaussian_kl
from tests.helpers.draws import normal


def test_gaussian_kl_by_hand():
    """s1 = 1, m1 = 2 against s2 = 2, m2 = 0: log 2 + (1 + 4)/8 - 1/2 = log 2 + 1/8."""
    value = gaussian_kl(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([0.0]), 2.0)
    assert float(value) == pytest.approx(math.log(2) + 1 / 8)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_gaussian_kl_agrees_with_torch(seed):
    m1, m2 = normal(2, 9, seed=seed)
    s1, s2 = normal(2, 9, seed=seed + 1).exp()
    expected = kl_divergence(Normal(m1, s1), Normal(m2, s2)).sum()
    torch.testing.assert_close(gaussian_kl(m1, s1, m2, s2), expected, rtol=1e-6, atol=1e-9)
    assert float(gaussian_kl(m1, s1, m2, s2)) > 0


def test_equal_gaussians_have_no_divergence_and_no_slope():
    """Exactly, in float32 too."""
    m, s = normal(50).float(), normal(50, seed=1).exp().float()
    assert float(gaussian_kl(m, s, m.clone(), s.clone())) == 0
    for argument in range(4):
        assert not grad(gaussian_kl, argument)(m, s, m.clone(), s.clone()).any()
