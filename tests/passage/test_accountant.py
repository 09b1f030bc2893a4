"""What is known of epsilon without the package that tells it."""

import math
import sys

import pytest

from pfl.passage import accountant


@pytest.fixture
def linear(monkeypatch):
    """Each round has epsilon 1; count how often it is asked for."""
    asked = []

    def epsilon(rate, sigma, rounds, delta):
        asked.append(rounds)
        return float(rounds)

    monkeypatch.setattr(accountant, "epsilon", epsilon)
    return asked


@pytest.mark.parametrize(
    ("most", "rounds"), [(0.5, 0), (1, 1), (6.9, 6), (7, 7), (99, 99), (100, 100), (1e9, 100)]
)
def test_the_rounds_that_epsilon_pays_for(linear, most, rounds):
    assert accountant.affordable(0.1, 1.0, 1e-5, most, 100) == rounds
    assert len(linear) < 10


def test_no_noise_and_no_rounds():
    assert accountant.epsilon(0.1, 0.0, 5, 1e-5) == math.inf
    assert accountant.epsilon(0.1, 1.0, 0, 1e-5) == 0


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pfl-lightning\[privacy\]'"):
        accountant.epsilon(0.123, 1.0, 5, 1e-5)
