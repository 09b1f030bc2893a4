"""Entries that become constants: out of the state, in place, and still computed with."""

from __future__ import annotations

import torch
from torch import nn

from lightning_modules.layers.constants import make_constant, statistics


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def test_a_constant_leaves_the_state_and_the_outputs_as_they_are():
    net, x = network().eval(), torch.ones(1, 2)
    before = net(x)
    make_constant(net, ("0.weight",))
    assert "0.weight" not in net.state_dict()
    assert "0.weight" not in dict(net.named_parameters())
    assert torch.equal(net(x), before)


def test_statistics_are_those_that_still_move():
    net = network()
    assert "1.running_mean" in statistics(net)
    make_constant(net, ("1.*",))
    assert statistics(net) == {}
    moved = net.train()
    moved(torch.randn(5, 2))
    assert torch.equal(net[1].module.running_mean, torch.zeros(3))
