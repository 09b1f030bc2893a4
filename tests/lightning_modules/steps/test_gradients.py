"""Gradients at other weights, alone and in a stack."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import vmap

from lightning_modules.layers import statistics
from lightning_modules.steps.gradients import slopes_at
from pfl.core.seeds import scoped
from pfl.core.types import Batch
from tests.helpers.draws import normal
from tests.helpers.toy import normed


class Idle(nn.Module):
    """A network with a weight that its outputs do not depend on, and a sum of its outputs."""

    def __init__(self):
        super().__init__()
        self.net, self.idle = normed(), nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        outputs = self.net(x)
        self.seen += outputs.sum(0)
        return outputs


def test_gradient_value_and_statistics_are_those_of_a_stack():
    """Nothing of it has a graph, or changes the network; an idle weight has a gradient of zero."""
    with scoped(1):
        net = Idle()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    weights = {name: 2 * value.detach() for name, value in net.named_parameters()}
    running = {"seen": net.seen, **statistics(net)}
    batch = Batch(normal(6, 5).float(), torch.arange(6) % 3)

    def once(x, y, own):
        return slopes_at(net, weights, own, Batch(x, y))

    alone = once(batch.x, batch.y, running)
    one = {name: value[None] for name, value in running.items()}
    stacked = vmap(once)(batch.x[None], batch.y[None], one)
    for found, beside in zip((alone[0], alone[2]), (stacked[0], stacked[2]), strict=True):
        assert found.keys() == beside.keys()
        for name, value in found.items():
            assert not value.requires_grad
            torch.testing.assert_close(value, beside[name][0])
    torch.testing.assert_close(alone[1], stacked[1][0])
    assert not alone[1].requires_grad
    assert torch.equal(alone[0]["idle"], torch.zeros(2))
    assert any(not torch.equal(alone[2][name], running[name]) for name in running)
    assert not any(value.requires_grad for value in weights.values())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_weight_that_two_layers_share_is_replaced_in_both():
    """The gradient of (w^2 x)^2 / 2 at w = 3, x = 1 is 2 w^3 = 54, whatever w the network has."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    net[1].weight = net[0].weight
    batch = Batch(torch.ones(1, 1), torch.zeros(1))

    def half_square(outputs, y, weight):
        return outputs.square().sum() / 2

    slopes, value, _ = slopes_at(net, {"0.weight": torch.tensor([[3.0]])}, {}, batch, half_square)
    assert slopes["0.weight"].item() == 54
    assert value.item() == 40.5
