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


@pytest.mark.parametrize(("steps", "seeded"), [((), True), ((Told(),), True), ((Secret(),), False)])
def test_where_draws_are_secret_cohorts_are_too_and_no_upload_is_left_out_later(steps, seeded):
    """Otherwise the seed, or a second aggregation, would tell what is not accounted for."""
    chain, drawn = Chain(steps, [type(step).__name__ for step in steps]), []
    for _ in range(2):
        stream = chain.stream(torch.Generator().manual_seed(1))
        drawn.append(int(torch.randint(2**62, (), generator=stream)))
    assert (drawn[0] == drawn[1]) == seeded
    assert chain.repeats == seeded
