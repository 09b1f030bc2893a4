"""What is said of a difference, by hand: same bits, rounding, or something else."""

from __future__ import annotations

import numpy as np
import pytest

from pfl.verification.verdict import BELIEVED, judged, largest, places


def never():
    """Stands for a measurement that must not be made."""
    pytest.fail("measured without need")


@pytest.mark.parametrize(
    ("same", "apart", "recorded", "measured", "said"),
    [
        (True, 0.0, None, never, "same bits"),
        (False, 0.0, None, never, "agrees: all scores are equal, and the weights differ in"),
        (True, 1e-8, None, never, "agrees: off by 1e-08 (here)"),
        (False, 2.6e-4, 9e-4, never, "agrees: off by 0.00026 (here), rounding alone makes 0.0009"),
        # Three times the largest of few draws is rounding too; four times is not.
        (False, 2.7e-3, 9e-4, never, "agrees: off by 0.0027 (here), rounding alone makes 0.0009"),
        (False, 3.6e-3, 9e-4, lambda: None, "different: off by 0.0036 (here), rounding alone make"),
        # What the recorded one does not explain is measured.
        (
            False,
            3.6e-3,
            9e-4,
            lambda: 2e-3,
            "agrees: off by 0.0036 (here), rounding alone makes 0.002",
        ),
        (
            False,
            3.6e-3,
            9e-4,
            lambda: 1e-9,
            "different: off by 0.0036 (here), rounding alone makes 0",
        ),
        # A claim that would excuse anything is not believed.
        (
            False,
            0.1,
            0.5,
            lambda: 1e-4,
            "different: off by 0.1 (here), rounding alone makes 0.0001",
        ),
        (
            False,
            5e-4,
            None,
            lambda: None,
            "agrees: off by 0.0005 (here), no radius of rounding is st",
        ),
        (
            False,
            2e-3,
            None,
            lambda: None,
            "different: off by 0.002 (here), no radius of rounding is",
        ),
        # A radius of 0 is none: the moved weights were not those that the run computes with.
        (
            False,
            5e-4,
            0.0,
            lambda: 0.0,
            "agrees: off by 0.0005 (here), no radius of rounding is st",
        ),
        (False, np.inf, None, lambda: 0.1, "different: off by inf (here)"),
    ],
)
def test_a_difference_is_judged_by_how_far_rounding_goes(same, apart, recorded, measured, said):
    assert str(judged(same, apart, "here", recorded, measured)).startswith(said)


def test_a_forged_number_gains_no_more_than_what_is_believed():
    assert judged(False, 3.1 * BELIEVED, "acc", BELIEVED, lambda: 1e-8).word == "different"


def test_the_largest_difference_is_relative_to_numbers_above_one():
    then = {"loss": 1000.0, "acc": 0.5, "both": np.nan}
    assert largest(then, {"loss": 1000.5, "acc": 0.5, "both": np.nan}) == ("loss", 0.5 / 1000.5)
    assert largest(then, {"loss": 1000.0, "acc": np.nan, "both": np.nan}) == ("acc", np.inf)
    assert largest(then, then) == ("", 0)


def test_both_places_are_named():
    assert places(["A", "A"], "A") == "then and now: A"
    assert places(["A", "B", "A"], "C") == "then: A; B\nnow: C"
    assert places([], "C") == "then: not recorded\nnow: C"
