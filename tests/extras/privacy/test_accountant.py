"""What is known of epsilon without the package that tells it."""

import math
import sys

import pytest

from pfl.extras.privacy import accountant


def test_no_noise_and_no_rounds():
    assert accountant.epsilon(0.1, 0.0, 5, 1e-5) == math.inf
    assert accountant.epsilon(0.1, 1.0, 0, 1e-5) == 0
    assert accountant.of_parts(((0.1, 1.0, 5), (0.2, 0.0, 3)), 1e-5) == math.inf
    assert accountant.of_parts(((0.1, 1.0, 0), (0.2, 0.0, 0)), 1e-5) == 0


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pfl-lightning\[privacy\]'"):
        accountant.epsilon(0.123, 1.0, 5, 1e-5)
