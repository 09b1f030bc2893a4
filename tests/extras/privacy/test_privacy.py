"""What a user may set."""

import math

import pytest

from pfl.extras.privacy.privacy import Privacy
from tests.helpers.messages import parts

GIVEN = {"clip": 1.0, "sigma": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clip": 0.0}, "clip ~ [1e-12, inf] ~ 0.0"),
        ({"sigma": -1.0}, "sigma ~ negative ~ -1.0"),
        ({"delta": 1.0}, "delta ~ (0, 1) ~ 1.0"),
        ({"epsilon": 0.0}, "epsilon ~ positive ~ 0.0"),
        ({"level": "item"}, "level ~ user, sample ~ 'item'"),
        ({"noise": "none"}, "noise ~ seed, system ~ 'none'"),
        ({"clip": math.inf}, "clip=inf ~ sigma=1.0 ~ sigma=0"),
        ({"sigma": math.inf}, "sigma=inf ~ unbounded noise"),
        ({"sigma": 0.0, "epsilon": 1.0}, "sigma=0 ~ epsilon=1.0"),
    ],
)
def test_wrong_numbers_are_refused_by_name(change, told):
    with pytest.raises(ValueError, match=parts(told)):
        Privacy(**{**GIVEN, **change})


def test_no_noise_allows_any_clip():
    assert Privacy(math.inf, 0.0, 1e-5).sum_deviation(3) == 0


def test_too_few_clients_for_an_adaptive_clip_are_refused():
    """sigma_b is q N / 20, and half of sigma must be below it."""
    own = Privacy(**GIVEN, adaptive=True)
    with pytest.raises(ValueError, match=parts("adaptive: ~ 10 clients ~ sigma=1.0 ~ tenth")):
        own.sum_deviation(10)
    assert own.sum_deviation(11) > 1


def test_the_deviation_of_a_fixed_clip_is_sigma():
    assert Privacy(**GIVEN).sum_deviation(2) == 1
