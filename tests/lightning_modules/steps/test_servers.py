"""Servers that several methods use, by hand."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from lightning_modules.pfedbayes import PFedBayes
from lightning_modules.pfedme import PFedMe
from lightning_modules.steps.servers import DampedServer, MeansServer, MovingServer, uploaded_means
from pfl.core.server import ServerState
from pfl.core.types import ClientInfo, Upload
from tests.helpers.federation import SGD, Federation, differing
from tests.helpers.messages import parts
from tests.helpers.toy import normed

START = ServerState({"w": torch.tensor([1.0])})
UPLOADS = [Upload(i, n, {"w": torch.tensor([v])}) for i, (n, v) in enumerate([(3, 2.0), (1, 6.0)])]


@pytest.mark.parametrize(("step", "expected"), [(0.0, 1.0), (0.5, 2.0), (1.0, 3.0), (2.0, 5.0)])
def test_it_goes_that_part_of_the_way_to_the_average(step, expected):
    """From 1 towards 3/4 * 2 + 1/4 * 6 = 3."""
    assert MovingServer(step=step).aggregate(START, UPLOADS).shared["w"].item() == expected


def test_only_parameters_go_beyond_the_average():
    """Half the way from (1, 1) to (3, 0) is (2, 0.5); twice the way would end at (5, -1)."""
    start = ServerState({"w": torch.tensor(1.0), "variance": torch.tensor(1.0)})
    uploads = [Upload(0, 1, {"w": torch.tensor(3.0), "variance": torch.tensor(0.0)})]
    for step, expected in ((0.5, [2.0, 0.5]), (2.0, [5.0, 0.0])):
        server = MovingServer(step=step, parameters=("w",))
        assert [v.item() for v in server.aggregate(start, uploads).shared.values()] == expected


@pytest.mark.parametrize("method", [PFedMe, PFedBayes])
def test_running_statistics_stop_at_the_average(method):
    near, far = (
        Federation(method(normed(bias=False), server_step=step, optimizer=SGD))
        for step in (1.0, 2.0)
    )
    near.round()
    far.round()
    parameters = {f"net.{name}" for name, _ in near.module.net.named_parameters()}
    assert differing(near.state.shared, far.state.shared) == parameters
    assert parameters < near.state.shared.keys()


def test_a_step_backwards_is_refused():
    with pytest.raises(ValueError, match=parts("step ~ negative ~ -1")):
        MovingServer(step=-1)


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 2.0), ("uniform", 3.0)])
def test_absent_members_damp_the_step(weighting, expected):
    """From 1 towards 3, by half: 3 + 1 of 8 samples; or towards 4, by 2 of 3 members with data."""
    members = [ClientInfo(i, n, None) for i, n in enumerate((3, 1, 4, 0))]
    server = DampedServer(weighting)
    after = server.aggregate(server.init(START.shared, members), UPLOADS)
    assert after.shared["w"].item() == expected


def test_batches_have_every_mean_once_an_epoch_in_a_new_order():
    server = MeansServer(server_epochs=2, server_batch=3)

    def batches(round):
        def descend(values, rows):
            seen.append(rows.tolist())
            return torch.zeros(())

        seen = []
        server.descended(START.shared, descend, [torch.arange(7)], server.orders(7, round))
        return seen

    first, second = batches(0), batches(1)
    assert [len(batch) for batch in first] == [3, 3, 1] * 2
    epochs = [[*chain(*each)] for each in (first[:3], first[3:], second[:3])]
    assert all(sorted(epoch) == [*range(7)] for epoch in epochs)
    assert len({*map(tuple, epochs)}) == 3
    assert batches(0) == first


def test_means_are_joined_by_upload_and_class():
    uploads = [
        Upload(i, 1, {}, {"classes": torch.tensor(c, dtype=torch.int32), "means": torch.ones(n, 2)})
        for i, (c, n) in enumerate([([0, 2], 2), ([1], 1)])
    ]
    means, classes = uploaded_means(uploads, torch.zeros((), dtype=torch.float64))
    assert (means.dtype, means.shape, classes.tolist()) == (torch.float64, (3, 2), [0, 2, 1])
