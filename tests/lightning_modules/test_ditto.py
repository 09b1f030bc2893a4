"""Ditto: the invariants in docs/methods."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.ditto import Ditto
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.federation import SGD, context, follow, job
from tests.helpers.toy import Line, blobs, lines, mlp

FACTS = {
    Ditto: facts.Facts(
        travels=("net.",),
        stays=("personal.",),
        floats=facts.NET,
    ),
}


class Slope(Ditto):
    """Ditto whose losses are v and w times the mean of x: constant gradients."""

    def _pulled(self, batch):
        return {**super()._pulled(batch), "ce": (batch.x * self.personal.w).mean()}

    def _fedavg(self, batch):
        return {"ce": (batch.x * self.net.w).mean()}


def walk(proximity, steps, start=1.0, received=3.0, slope=2.0, global_steps=5):
    """Return the personal value after some steps of rate 0.1 from ``start``."""
    data = lines(slope)
    module = Slope(
        Line(), proximity=proximity, personal_epochs=steps, epochs=global_steps, optimizer=SGD
    )
    sent = job(
        data,
        broadcast=Broadcast({"net.w": torch.tensor([received])}),
        kept={"personal.w": torch.tensor([start])},
    )
    return client_round.train(context(module, data), sent).kept["personal.w"].item()


def personal(state):
    return {n.removeprefix("personal."): v for n, v in state.items()}


def test_the_fixed_point_is_the_gradient_over_lambda_away():
    """Invariant 3: w^t - g / lambda = 3 - 2 / 4 = 2.5."""
    assert walk(4.0, 100) == pytest.approx(2.5, abs=1e-5)


def test_the_anchor_is_the_received_model():
    """Invariant 5.

    v: 1 - 0.1 (2 + 4 (1 - 3)) = 1.6, whatever the global branch does (it goes to 3 - 1 = 2).

    Anchored at that 2, it would be 1 - 0.1 (2 + 4 (1 - 2)) = 1.2.
    """
    assert walk(4.0, 1, global_steps=5) == pytest.approx(1.6)
    assert walk(4.0, 1, global_steps=0) == pytest.approx(1.6)


def test_the_pull_comes_before_momentum():
    """From v = w^t = 3: gradients 2 and 2 - 0.8, velocity 2 and 1.8 + 1.2: v = 3 - 0.5."""
    data = lines(2.0)
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    module = Slope(Line(3.0), proximity=4.0, epochs=2, optimizer=optimizer)
    result = client_round.train(context(module, data), job(data))
    assert result.kept["personal.w"].item() == pytest.approx(2.5)
    assert result.upload.shared["net.w"].item() == pytest.approx(3 - 0.1 * (2 + 3.8))


def test_default_epochs_are_those_of_the_global_branch():
    assert [phase.epochs for phase in Ditto(mlp(), epochs=4).plan()] == [4, 4]
    assert [phase.epochs for phase in Ditto(mlp(), epochs=4, personal_epochs=1).plan()] == [1, 4]


def test_personal_models_are_tested_and_the_global_one_as_such():
    data = blobs()
    run, (first,) = follow(Ditto(mlp(), optimizer=SGD, epochs=3), data, 1)
    net = mlp()
    for client in range(3):
        split = data.split(client, "test")
        net.load_state_dict(personal(run.kept[client]))
        own = cross_entropy(net(split.x), split.targets).item()
        assert first.clients[client]["test/personal/loss"] == pytest.approx(own)
        net.load_state_dict({n.removeprefix("net."): v for n, v in run.server.shared.items()})
        common = cross_entropy(net(split.x), split.targets).item()
        assert first.clients[client]["test/global/loss"] == pytest.approx(common)
