"""Intervals by hand."""

from __future__ import annotations

import pytest
from scipy import stats

from benchmarks.ledger.noise import Noise, bartlett, half, pooled


def noise(*values):
    middle = sum(values) / len(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return Noise(variance**0.5, len(values) - 1, "seeds")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # A standard error of 0.01 of 5 runs, and one run: 2.776 sqrt(6) 0.01.
        ({Noise(5**0.5 * 0.01, 4, ""): 1 + 1 / 5}, 0.0680),
        # A standard deviation of 0.01 of 3 runs, and one run: 4.303 sqrt(4 / 3) 0.01.
        ({Noise(0.01, 2, ""): 1 + 1 / 3}, 0.0497),
        # 18 degrees of freedom, two runs against one: 2.101 sqrt(3 / 2) 0.02.
        ({Noise(0.02, 18, ""): 1 + 1 / 2}, 0.05146),
        # Two of the same size are two measurements, 8 degrees of freedom: 2.306 sqrt(2) 0.00894.
        ({Noise(0.00894, 4, ""): 1, Noise(0.00894, 4, ""): 1}, 0.02916),
        # (0.01^2 + 0.05^2)^2 / (0.01^4 / 3 + 0.05^4 / 7) = 7.543: 2.3305 times 0.05099.
        ({Noise(0.01, 3, ""): 1, Noise(0.05, 7, ""): 1}, 0.11883),
        ({Noise(0.0, 2, ""): 1}, 0.0),
    ],
)
def test_intervals_by_hand(weights, expected):
    assert half(weights) == pytest.approx(expected, rel=1e-3)


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
