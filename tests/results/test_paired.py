"""Paired tests, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl.results.paired import holm, over_clients, over_replicates


def test_ranks_of_clients():
    """Differences 1, 2, 3, -4, 0: ranks 1 to 4 of those that are not zero.

    Favourable ranks 1 + 2 + 3 = 6 of 10, effect (6 - 4) / 10. Of the 16 ways to sign four ranks, as
    far from 5 as 6 is or farther: sums 0, 1, 2, 3, 3, 4, 4 and as many above 5; all but the two
    that make 5, so p = 14 / 16.
    """
    found = over_clients(np.array([1.0, 2, 3, 0, 5]), np.array([0.0, 0, 0, 4, 5]))
    assert (found.pairs, found.better, found.worse) == (5, 3, 1)
    assert found.effect == pytest.approx(0.2)
    assert found.p == pytest.approx(14 / 16)
    assert found.difference == pytest.approx(0.4)


def test_five_clients_that_all_gain():
    """Two of 2^5 signs are as extreme: p = 1 / 16. All ranks are favourable."""
    found = over_clients(np.arange(1.0, 6), np.zeros(5))
    assert found.p == pytest.approx(1 / 16)
    assert found.effect == 1


def test_noise_of_single_precision_is_no_difference():
    found = over_clients(np.array([0.5, 0.7]) + 1e-8, np.array([0.5, 0.7]))
    assert (found.better, found.worse, found.effect, found.p) == (0, 0, 0, 1)


def test_means_over_seeds():
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3).

    With two degrees of freedom p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14), and the quantile
    t_0.975 = 4.30265 gives the interval 2 -+ 4.30265 / sqrt(3).
    """
    found = over_replicates(np.array([2.0, 3, 4]), np.array([1.0, 1, 1]))
    assert found.effect == pytest.approx(2)
    assert found.p == pytest.approx(1 - (12 / 14) ** 0.5)
    assert found.low == pytest.approx(2 - 4.30265 / 3**0.5, abs=1e-4)
    assert found.high == pytest.approx(2 + 4.30265 / 3**0.5, abs=1e-4)


def test_seeds_that_all_differ_by_the_same():
    found = over_replicates(np.array([0.5, 0.6]), np.array([0.4, 0.5]))
    assert (found.effect, found.p) == (np.inf, 0)
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))
    same = over_replicates(np.array([0.5, 0.6]), np.array([0.5, 0.6]))
    assert (same.effect, same.p) == (0, 1)


@pytest.mark.parametrize("test", [over_clients, over_replicates])
def test_one_pair_tells_nothing(test):
    assert test(np.array([1.0]), np.array([0.0])) is None
    assert test(np.array([]), np.array([])) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6))
@pytest.mark.parametrize("test", [over_clients, over_replicates])
def test_the_other_way_round_changes_the_sign_only(test, pairs):
    ours, theirs = map(np.array, zip(*pairs, strict=True))
    one, other = test(ours, theirs), test(theirs, ours)
    assert one.p == pytest.approx(other.p)
    assert 0 <= one.p <= 1
    assert one.effect == pytest.approx(-other.effect)
    assert one.low == pytest.approx(-other.high)
    assert (one.better, one.worse) == (other.worse, other.better)


def test_holm():
    """Sorted 0.01, 0.03, 0.04 times 3, 2, 1: 0.03, 0.06, 0.04; never less than the one before."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms())
def test_holm_raises_keeps_the_order_and_does_not_depend_on_it(p_values, random):
    adjusted = dict(zip(p_values, holm(p_values), strict=True))
    assert all(before <= after <= 1 for before, after in adjusted.items())
    assert sorted(adjusted.values()) == [adjusted[p] for p in sorted(adjusted)]
    shuffled = list(p_values)
    random.shuffle(shuffled)
    assert sorted(holm(shuffled)) == pytest.approx(sorted(holm(p_values)))
