"""Paired tests, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl.results.paired import adjusted, holm, paired


def test_the_mean_difference_and_its_interval():
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3).

    With two degrees of freedom p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14), and the quantile
    t_0.975 = 4.30265 gives the interval 2 -+ 4.30265 / sqrt(3).
    """
    found = paired(np.array([2.0, 3, 4]), np.array([1.0, 1, 1]))
    assert (found.pairs, found.positive, found.negative) == (3, 3, 0)
    assert found.difference == pytest.approx(2)
    assert found.effect == pytest.approx(2)
    assert found.p == pytest.approx(1 - (12 / 14) ** 0.5)
    assert found.low == pytest.approx(2 - 4.30265 / 3**0.5, abs=1e-4)
    assert found.high == pytest.approx(2 + 4.30265 / 3**0.5, abs=1e-4)


def test_noise_of_single_precision_is_no_difference():
    found = paired(np.array([0.5, 0.7]) + 1e-8, np.array([0.5, 0.7]))
    assert (found.positive, found.negative, found.effect, found.p) == (0, 0, 0, 1)


def test_pairs_that_all_differ_by_the_same():
    found = paired(np.array([0.5, 0.6]), np.array([0.4, 0.5]))
    assert (found.effect, found.p) == (np.inf, 0)
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))
    same = paired(np.array([0.5, 0.6]), np.array([0.5, 0.6]))
    assert (same.effect, same.p) == (0, 1)


def test_one_pair_tells_nothing():
    assert paired(np.array([1.0]), np.array([0.0])) is None
    assert paired(np.array([]), np.array([])) is None


PAIRS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12)


@given(PAIRS, st.floats(-1, 1))
def test_interval_and_p_are_of_one_test(pairs, shift):
    """Zero lies outside the interval exactly where p is below 0.05."""
    ours, theirs = map(np.array, zip(*pairs, strict=True))
    found = paired(ours + shift, theirs)
    if abs(found.p - 0.05) > 1e-6:
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


def test_tests_that_were_made_together_are_adjusted_and_gaps_stay():
    """p = 1 - sqrt(12 / 14) twice: the smaller is doubled, and no other may be less."""
    one = paired(np.array([2.0, 3, 4]), np.array([1.0, 1, 1]))
    first, gap, second = adjusted([one, None, one])
    assert gap is None
    assert first.p == one.p
    assert first.p_holm == second.p_holm == pytest.approx(2 * one.p)


def test_holm():
    """Sorted 0.01, 0.03, 0.04 times 3, 2, 1: 0.03, 0.06, 0.04; never less than the one before."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []
