"""One seed for the initial values of every network tested here."""

import pytest

from pfl.core.seeds import scoped


@pytest.fixture(autouse=True)
def _seeded():
    with scoped(0):
        yield
