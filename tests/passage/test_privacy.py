"""What a user may set."""

import math

import pytest

from pfl.passage.privacy import Privacy

GIVEN = {"clip": 1.0, "sigma": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clip": 0.0}, "clip must be positive, got 0.0"),
        ({"sigma": -1.0}, "sigma must not be negative, got -1.0"),
        ({"delta": 1.0}, "delta must lie in"),
        ({"epsilon": 0.0}, "epsilon must be positive, got 0.0"),
        ({"level": "item"}, "level must be one of user"),
        ({"noise": "none"}, "noise must be one of seed, system"),
        ({"clip": math.inf}, "an infinite clip needs sigma=0"),
        ({"sigma": math.inf}, "noise without bound"),
        ({"sigma": 0.0, "epsilon": 1.0}, "sigma=0 adds no noise"),
    ],
)
def test_wrong_numbers_are_refused_by_name(change, told):
    with pytest.raises(ValueError, match=told):
        Privacy(**{**GIVEN, **change})


def test_no_noise_allows_any_clip():
    assert Privacy(math.inf, 0.0, 1e-5).sum_deviation(3) == 0


def test_too_few_clients_for_an_adaptive_clip_are_refused():
    """sigma_b is q N / 20, and half of sigma must be below it."""
    own = Privacy(**GIVEN, adaptive=True)
    with pytest.raises(ValueError, match="the count of 10 clients a round cannot have the noise"):
        own.sum_deviation(10)
    assert own.sum_deviation(11) > 1


def test_the_deviation_of_a_fixed_clip_is_sigma():
    assert Privacy(**GIVEN).sum_deviation(2) == 1
