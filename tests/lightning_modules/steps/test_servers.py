"""Servers that several methods use, by hand."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.steps.servers import MovingServer
from pfl.core.server import ServerState
from pfl.core.types import Upload
from tests.helpers.messages import parts

START = ServerState({"w": torch.tensor([1.0])})
UPLOADS = [Upload(i, n, {"w": torch.tensor([v])}) for i, (n, v) in enumerate([(3, 2.0), (1, 6.0)])]


@pytest.mark.parametrize(("step", "expected"), [(0.0, 1.0), (0.5, 2.0), (1.0, 3.0), (2.0, 5.0)])
def test_it_goes_that_part_of_the_way_to_the_average(step, expected):
    """From 1 towards 3/4 * 2 + 1/4 * 6 = 3."""
    assert MovingServer(step=step).aggregate(START, UPLOADS).shared["w"].item() == expected


def test_without_uploads_it_stays():
    after = MovingServer(step=0.5).aggregate(START, [])
    assert (after.shared, after.round) == (START.shared, 1)


def test_a_step_backwards_is_refused():
    with pytest.raises(ValueError, match=parts("server_step ~ negative ~ -1")):
        MovingServer(step=-1)
