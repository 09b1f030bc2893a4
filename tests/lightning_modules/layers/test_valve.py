"""GPFL's conditional valve."""

from __future__ import annotations

import torch
from torch import nn

from lightning_modules.layers import ConditionalValve


def test_valve_by_hand():
    """D = 2: a branch whose linear layer is zero has LayerNorm(0) = its bias.

    gamma = (1, 2), beta = (-1, 1), z = (1, -1): ReLU(2 - 1, -3 + 1) = (1, 0).
    """
    valve = ConditionalValve(2)
    for branch, bias in ((valve.scale, [1.0, 2.0]), (valve.shift, [-1.0, 1.0])):
        nn.init.zeros_(branch[0].weight)
        nn.init.zeros_(branch[0].bias)
        branch[2].bias.data = torch.tensor(bias)
    assert valve(torch.tensor([[1.0, -1.0]]), torch.rand(2)).tolist() == [[1.0, 0.0]]


def test_valve_of_one_condition_is_that_of_the_same_condition_for_every_sample():
    valve, z, condition = ConditionalValve(8), torch.rand(5, 8), torch.rand(8)
    torch.testing.assert_close(valve(z, condition), valve(z, condition.expand(5, 8)))
