"""FedProx and FedProx-P: the invariants in docs/methods."""

from functools import partial

import pytest
import torch

from lightning_modules.fedprox import FedProx, FedProxP
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import facts
from tests.helpers.federation import HEAVY, context, job
from tests.helpers.toy import Line, blobs, lines, normed

FACTS = {
    FedProx: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
    ),
    FedProxP: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
    ),
}


class Slope(FedProx):
    """FedProx whose loss is w times the mean of x: a constant gradient."""

    def losses(self, batch):
        terms = super().losses(batch)
        return {**terms, "ce": (batch.x * self.net.w).mean()}


def walk(mu, steps, lr=0.1, start=3.0, slope=2.0):
    """Return w after some steps from the received value ``start``."""
    data = lines(slope)
    module = Slope(Line(), mu=mu, epochs=steps, optimizer=partial(torch.optim.SGD, lr=lr))
    sent = job(data, broadcast=Broadcast({"net.w": torch.tensor([start])}))
    return client_round.train(context(module, data), sent).upload.shared["net.w"].item()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_k_steps_on_a_constant_gradient_are_a_geometric_sum(steps):
    """Invariant 3: w - w^t = -(g / mu) (1 - (1 - eta mu)^K), with g = 2, mu = 4, eta = 0.1."""
    expected = 3.0 - 0.5 * (1 - 0.6**steps)
    assert walk(4.0, steps) == pytest.approx(expected, abs=1e-6)


def test_the_pull_comes_before_momentum():
    """Gradients 2 and 2 + 4 (-0.2) = 1.2, velocity 2 and 0.9 * 2 + 1.2 = 3: w = 3 - 0.5."""
    data = lines(2.0)
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    module = Slope(Line(), mu=4.0, epochs=2, optimizer=optimizer)
    sent = job(data, broadcast=Broadcast({"net.w": torch.tensor([3.0])}))
    result = client_round.train(context(module, data), sent)
    assert result.upload.shared["net.w"].item() == pytest.approx(2.5)


def test_the_anchor_is_the_received_model_and_does_not_move():
    data, module = blobs(), FedProx(normed(), optimizer=HEAVY, epochs=3, mu=0.1)
    sent = {n: v + 1 for n, v in module.state_dict().items() if n in module.shared_names()}
    client_round.train(context(module, data), job(data, broadcast=Broadcast(sent)))
    state = module.state_dict()
    for name, value in sent.items():
        assert torch.equal(state[f"anchor.module.{name.removeprefix('net.')}"], value)
