"""Epsilon beside known values, and beside a second accountant."""

import pytest

from benchmarks import privacy
from pfl.extras.privacy.accountant import epsilon

pytest.importorskip("dp_accounting")


@pytest.mark.long
@pytest.mark.parametrize("known", privacy.ORACLES)
def test_epsilon_is_the_known_one(known):
    assert epsilon(*known[:4]) == pytest.approx(known.epsilon, abs=1e-3)


def test_epsilon_is_below_that_of_renyi_orders():
    """At q 0.1, sigma 1, 100 rounds and delta 1e-3 Renyi accounting gives 5.6551."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    renyi = RdpAccountant()
    renyi.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 100)
    assert renyi.get_epsilon(1e-3) == pytest.approx(5.6551, abs=1e-4)
    assert epsilon(0.1, 1.0, 100, 1e-3) < 5
