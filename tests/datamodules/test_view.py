"""The samples on a device: all of them there, or each batch copied."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from datamodules import IID, Synthetic
from tests.helpers.device import NAME, simulated


@pytest.fixture
def data():
    made = Synthetic(samples=24, classes=3, channels=1, size=8, num_clients=3, partition=IID())
    made.setup()
    return made


@pytest.mark.parametrize("fits", [True, False])
def test_splits_are_joined_whichever_of_them_were_used_before(data, fits):
    splits = [data.split(client, "train") for client in range(3)]
    some = torch.tensor([3, 0])
    expected = splits[1].batch(some)
    with simulated() as device:
        device.memory = 2**30 if fits else 1000
        data.to(torch.device(NAME, 0))
        own = splits[1].batch(some)
        joined = splits[0].joined(splits).batch(some + len(splits[0]))
        device.reset()
        splits[1].batch(some)
        assert device.copies.total() == (1 if fits else 2)
        for batch in (own, joined):
            assert {value.device.type for value in batch[:2]} == {NAME}
            assert_close((batch.x.cpu(), batch.y.cpu()), expected[:2], rtol=0, atol=0)
