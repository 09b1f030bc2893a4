"""Intervals by hand."""

from __future__ import annotations

import pytest
from scipy import stats

from benchmarks.ledger.noise import Noise, bartlett, half, pooled


def noise(*values):
    middle = sum(values) / len(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return Noise(variance**0.5, len(values) - 1, "seeds")


def test_an_interval_at_another_level():
    """With 2 degrees of freedom t is 6.205 at 97.5 %."""
    assert half({Noise(0.01, 2, ""): 1}, 0.975) == pytest.approx(0.06205, rel=1e-3)


def test_the_test_of_equal_noise_is_scipy_s():
    samples = [[1.0, 2.0, 3.0], [1.0, 5.0, 12.0, 2.0], [0.0, 0.1]]
    found = [noise(*sample) for sample in samples]
    df = sum(one.df for one in found)
    variance = sum(one.df * one.sd**2 for one in found) / df
    assert bartlett(found, df, variance) == pytest.approx(stats.bartlett(*samples).pvalue)


def test_noise_is_pooled_only_if_the_test_allows_it():
    """0.80, 0.82 and 0.84 have squares of 0.0008 with 2 degrees of freedom, 0.70 and 0.72 have
    0.0002 with 1: together sqrt(0.001 / 3)."""
    both = pooled([noise(0.80, 0.82, 0.84), noise(0.70, 0.72)], "seeds")
    assert (both.sd, both.df) == (pytest.approx((0.001 / 3) ** 0.5), 3)
    assert pooled([noise(0.80, 0.82, 0.84), noise(0.1, 0.5, 0.9)], "seeds") is None
    assert pooled([noise(0.80, 0.82), noise(0.5, 0.5)], "seeds") is None
    assert pooled([noise(0.5, 0.5)], "seeds").sd == 0
