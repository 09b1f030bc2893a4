"""Weights are moved by one unit in the last place, each up or down, and always alike."""

from __future__ import annotations

import torch
from torch import nn

from pfl.verification.rounding import move


def test_each_weight_moves_to_a_neighbour():
    nets = [nn.Linear(40, 30) for _ in range(3)]
    for net in nets[1:]:
        net.load_state_dict(nets[0].state_dict())
    before = nets[0].weight.detach().clone()
    for net, draw in zip(nets, (0, 0, 1), strict=True):
        move(net, draw)
    steps = nets[0].weight.detach().view(torch.int32) - before.view(torch.int32)
    assert {*steps.abs().flatten().tolist()} == {1}
    up = (nets[0].weight > before).float().mean()
    assert 0.4 < up < 0.6
    assert torch.equal(nets[0].weight, nets[1].weight)
    assert not torch.equal(nets[0].weight, nets[2].weight)
