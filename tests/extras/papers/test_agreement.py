"""Means, intervals and agreement, by hand and by scipy's own tests."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pfl.extras.papers.agreement import agree, half_width, in_or_out
from pfl.results.statistics import Deviation, Estimate


def test_the_interval_of_two_runs_by_hand():
    """Values 1 and 3: mean 2, standard error 1, and t(0.975, 1) = 12.7062."""
    found = Estimate.of([1.0, 3.0])
    assert (found.mean, found.count, found.error) == (2, 2, pytest.approx(1))
    assert found.interval == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)
    assert found.text() == "2.00 ± 1.00"
    assert Estimate.of([1.0]).interval is None
    assert Estimate.of([0.5]).text(100) == "50.00"


def test_one_run_is_judged_by_the_prediction_interval_of_the_printed_spread():
    """A mean of 5 with standard error 0.01: t(0.975, 4) = 2.7764 times sqrt(6) times 0.01."""
    printed = Estimate(0.60, 5, Deviation(0.01 * 5**0.5, 4))
    half = 2.7764451 * 6**0.5 * 0.01
    assert half_width(Estimate.of([0.5]), printed) == pytest.approx(half)
    assert agree(Estimate.of([0.60 - half + 1e-6]), printed) is True
    assert agree(Estimate.of([0.60 - half - 1e-6]), printed) is False


@pytest.mark.parametrize("counts", [(2, 5), (4, 3), (20, 6)])
def test_two_spreads_give_welchs_interval(counts):
    rng = np.random.default_rng(1)
    ours, theirs = (rng.normal(0, scale, n) for scale, n in zip((1, 3), counts, strict=True))
    welch = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    half = half_width(Estimate.of(ours), Estimate.of(theirs))
    assert half == pytest.approx((welch.high - welch.low) / 2)
    middle = ours.mean() - theirs.mean()
    assert agree(Estimate.of(ours), Estimate.of(theirs)) is bool(abs(middle) <= half)


def test_without_any_spread_there_is_no_verdict():
    assert half_width(Estimate.of([0.5]), Estimate(0.6, 1, None)) is None
    assert agree(Estimate.of([0.5]), Estimate(0.6, 1, None)) is None


@pytest.mark.parametrize("mean", [np.nan, np.inf])
def test_a_mean_that_is_not_finite_gives_no_verdict(mean):
    printed = Estimate(0.6, 5, Deviation(0.01, 4))
    assert agree(Estimate(mean, 1, None), printed) is None
    assert agree(Estimate(mean, 2, Deviation(mean, 1)), printed) is None
    assert [in_or_out(answer) for answer in (None, True, False)] == ["-", "in", "out"]


def test_equal_runs_agree_with_equal_runs_alone():
    same = Estimate.of([0.5, 0.5])
    assert half_width(same, same) == 0
    assert agree(same, same) is True
    assert agree(same, Estimate.of([0.6, 0.6])) is False
