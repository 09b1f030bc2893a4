"""The steps of an uplink, once they are bound: what follows from what they are."""

from __future__ import annotations

import pytest
import torch

from pfl.training.chain import Chain
from pfl.training.uplink import UplinkStep


class Secret(UplinkStep):
    secret = True


class Told(UplinkStep):
    pass


@pytest.mark.parametrize(
    ("steps", "secret"), [((), False), ((Told(),), False), ((Secret(),), True)]
)
def test_where_draws_are_secret_cohorts_are_too_and_no_upload_is_left_out_later(steps, secret):
    """Otherwise the seed, or a second aggregation, would tell what is not accounted for."""
    chain = Chain(steps, [type(step).__name__ for step in steps])
    assert (chain.secret, chain.repeats) == (secret, not secret)


def test_no_seed_tells_the_cohorts_of_secret_draws():
    drawn = {int(torch.randint(2**62, (), generator=Chain().stream())) for _ in range(2)}
    assert len(drawn) == 2
