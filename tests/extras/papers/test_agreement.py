"""Means, intervals and verdicts, by hand and by scipy's own tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pfl.extras.papers.agreement import compare, half, half_width, pooled, verdict
from pfl.results.statistics import Deviation, Estimate

PRINTED = Estimate(0.60, 5, Deviation(0.002 * 5**0.5, 4))


def test_the_interval_of_two_runs_by_hand():
    """Values 1 and 3: mean 2, standard error 1, and t(0.975, 1) = 12.7062."""
    found = Estimate.of([1.0, 3.0])
    assert (found.mean, found.count, found.error) == (2, 2, pytest.approx(1))
    assert found.interval == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)
    assert found.text() == "2.00 ± 1.00"
    assert Estimate.of([1.0]).interval is None
    assert Estimate.of([0.5]).text(100) == "50.00"


def test_one_run_has_the_interval_of_the_printed_spread():
    """A mean of 5 with standard error 0.002: t(0.975, 4) = 2.7764 times sqrt(6) times 0.002."""
    width = 2.7764451 * 6**0.5 * 0.002
    assert half_width([PRINTED.spread], 1, 5) == pytest.approx(width)
    inner, outer = 0.02 - width, 0.02 + width
    for apart, expected in (
        *((inner - 1e-6, "equal"), (inner + 1e-6, "undecided")),
        *((outer - 1e-6, "undecided"), (outer + 1e-6, "different")),
    ):
        for sign in (1, -1):
            assert compare(Estimate.of([0.60 + sign * apart]), PRINTED) == expected


@pytest.mark.parametrize("counts", [(2, 5), (4, 3), (20, 6)])
def test_two_spreads_give_student_s_interval(counts):
    rng = np.random.default_rng(1)
    ours, theirs = (rng.normal(0, 1, n) for n in counts)
    student = stats.ttest_ind(ours, theirs).confidence_interval(0.95)
    both = [Estimate.of(values).spread for values in (ours, theirs)]
    assert half_width(both, *counts) == pytest.approx((student.high - student.low) / 2)
    welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    parts = [(spread, 1 / n) for spread, n in zip(both, counts, strict=True)]
    assert half(parts) == pytest.approx((welch.high - welch.low) / 2)


@given(st.floats(0.001, 1), st.integers(1, 50), st.integers(1, 10), st.integers(1, 10))
def test_more_runs_of_the_same_spread_only_narrow_it(sd, df, ours, theirs):
    before, after = (
        half_width([Deviation(sd, df + more)], ours + more, theirs) for more in range(2)
    )
    assert after < before


def test_without_any_spread_nothing_is_decided():
    assert pooled([]) is None
    assert half_width([], 1, 1) is None
    assert compare(Estimate.of([0.6]), Estimate(0.6, 1, None)) == "undecided"


@pytest.mark.parametrize("mean", [np.nan, np.inf])
def test_a_mean_that_is_not_finite_decides_nothing(mean):
    assert compare(Estimate(mean, 1, None), PRINTED) == "undecided"
    assert compare(Estimate(mean, 2, Deviation(mean, 1)), PRINTED) == "undecided"


def test_runs_without_any_spread_are_taken_at_their_word():
    same = Estimate.of([0.5, 0.5])
    assert compare(same, same) == "equal"
    assert compare(same, Estimate.of([0.6, 0.6])) == "different"
    # Printed numbers are rounded: 0.60 - 0.58 is a little more than 0.02.
    assert verdict(0.60 - 0.58, 0.0) == "equal"
