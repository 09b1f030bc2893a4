"""What ``conftest.py`` does for every test."""

import pytest
import torch

from lightning_modules import FedAvg, FedPer
from pfl.testing import PROMISES
from tests.tiers import OWN_PROMISES, is_long


@pytest.mark.parametrize("turn", [1, 2])
def test_draws_from_the_default_stream_are_those_of_seed_0(turn):
    assert torch.rand(()).item() == pytest.approx(0.4962566)


def test_every_method_is_examined_for_what_its_own_code_could_break():
    """And one of each mechanism for all promises; the rest is the long tier."""
    assert {promise.name for promise in PROMISES} > OWN_PROMISES
    for promise in PROMISES:
        assert not is_long({"method": FedPer, "promise": promise})
        assert is_long({"method": FedAvg, "promise": promise}) != (promise.name in OWN_PROMISES)
    assert is_long({"method": FedAvg})
    assert not is_long({"number": 3, "kind": int})
