"""One stacked model gives the sequential engine's numbers, up to the rounding of sums.

Compared in float64: in float32 a ReLU or a pooling that flips at a tie grows to 1e-4 in a few
steps, in the sequential loop as well as soon as the samples of a batch change places.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules.fedavg import FedAvg
from lightning_modules.layers import frozen
from lightning_modules.local import Local
from lightning_modules.losses import mean
from lightning_modules.nets import SplitNet
from lightning_modules.pfakd import PFAKD
from pfl.core.seeds import scoped
from pfl.engines.sequential import SequentialEngine
from pfl.engines.vectorised import VectorisedEngine
from tests.engines.agreement import fit, module_of, numbers
from tests.helpers import toy
from tests.helpers.draws import normal
from tests.helpers.federation import SGD
from tests.helpers.toy import ToyData, blobs

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def check(module_twice, header="vectorised", engine=None, **loop):
    """Check that two modules alike, one on each engine, end up alike."""
    loop = {"precision": "64-true", **loop}
    alone = fit(module_twice(), SequentialEngine(), **loop)
    beside = fit(module_twice(), engine or VectorisedEngine(), **loop)
    assert beside.header["engine"].startswith(header)
    torch.testing.assert_close(beside.server.shared, alone.server.shared, **CLOSE)
    assert beside.kept.keys() == alone.kept.keys()
    for client, state in alone.kept.items():
        torch.testing.assert_close(beside.kept[client], state, **CLOSE)
    for one, other in zip(numbers(beside), numbers(alone), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


# Without a bias, which before a batch norm would only be the rounding of zero slopes.
normed = partial(toy.normed, bias=False)


def spatial(momentum=0.1):
    """Build a network with batch norm over maps of more than one pixel."""
    with scoped(2):
        body = nn.Sequential(
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 4, 2, bias=False),
            nn.BatchNorm1d(4, momentum=momentum),
            nn.ReLU(),
            nn.Flatten(),
        )
        return SplitNet(body, nn.Linear(16, 3))


@pytest.mark.parametrize("buffers", ["local", "average"])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("net", [normed, spatial])
def test_a_frozen_teacher_with_batch_norm_agrees(net, mode, buffers):
    """Its statistics are the batch's, without padding, or the running ones as received."""
    options = {"teacher_mode": mode, "buffers": buffers, "epochs": 2}
    check(lambda: module_of(PFAKD, net, **options), data=blobs((4, 9, 2, 17, 6)))


@pytest.mark.filterwarnings("ignore:client 2 takes no step")
def test_only_a_counter_that_is_read_is_an_obstacle():
    """Without momentum a batch norm reads it in training; a frozen copy does not."""
    header = "sequential, not vectorised: a batch norm without momentum"
    check(lambda: module_of(PFAKD, partial(spatial, momentum=None)), header)
    check(lambda: Anchored(spatial(), optimizer=SGD))


class Anchored(FedAvg):
    """Beside the network rests a frozen one, whose batch norm has no momentum."""

    def __init__(self, net, **options):
        super().__init__(net, **options)
        self.anchor = frozen(spatial(momentum=None))

    def losses(self, batch):
        distance = (self.net.backbone(batch.x) - self.anchor.module.backbone(batch.x)).square()
        return {**super().losses(batch), "pull": mean(distance.mean(-1), batch.weight)}


def with_dropout(rate=0.5):
    with scoped(1):
        body = nn.Sequential(nn.Linear(5, 6), nn.Dropout(rate), nn.ReLU())
        return SplitNet(body, nn.Linear(6, 3))


def test_dropout_that_drops_nothing_agrees():
    engine = VectorisedEngine(2, dropout=True)
    header = "vectorised: 2 clients in one go"
    check(lambda: module_of(FedAvg, partial(with_dropout, 0.0)), header, engine)


def test_dropout_draws_for_each_client_and_the_same_again():
    """Clients with the same data end up apart; torch's default stream stays where it was."""
    before = torch.random.get_rng_state()
    data = ToyData([(normal(8, 5).float(), torch.arange(8) % 3)] * 3)
    first, again = (
        fit(module_of(Local, with_dropout), VectorisedEngine(3, dropout=True), data=data)
        for _ in range(2)
    )
    assert first.header["engine"] == "vectorised: 3 clients in one go"
    assert first.fingerprint == again.fingerprint
    a, b, c = (state["net.backbone.0.weight"] for state in first.kept.values())
    assert not torch.equal(a, b)
    assert not torch.equal(b, c)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("layer", "engine", "reason"),
    [
        (nn.Dropout(), VectorisedEngine(2), "dropout draws from torch's default stream"),
        (nn.RReLU(), VectorisedEngine(2, dropout=True), "RReLU cannot draw for several"),
    ],
)
def test_other_draws_are_not_stacked(layer, engine, reason):
    def net():
        return SplitNet(nn.Sequential(nn.Linear(5, 6), layer), nn.Linear(6, 3))

    run = fit(module_of(FedAvg, net), engine, rounds=1)
    assert run.header["engine"].startswith(f"sequential, not vectorised: {reason}")


def test_dropout_needs_to_know_who_goes_together():
    with pytest.raises(ValueError, match=r"dropout=True needs a number of clients.*clients=None"):
        VectorisedEngine(dropout=True)
