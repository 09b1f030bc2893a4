"""A product of low rank beside a layer, by hand."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from lightning_modules.layers import LowRankConv2d, LowRankLinear
from tests.helpers.messages import refuses


def test_the_product_is_added():
    """W = 0, b = 1, A = (1, 2), B = (3, 5)^T, x = (1, 1): A x = 3, so (1 + 9, 1 + 15)."""
    layer = nn.Linear(2, 2)
    nn.init.zeros_(layer.weight)
    nn.init.ones_(layer.bias)
    adapted = LowRankLinear(layer, rank=1)
    with torch.no_grad():
        adapted.down.copy_(torch.tensor([[1.0, 2.0]]))
        adapted.up.copy_(torch.tensor([[3.0], [5.0]]))
    assert adapted(torch.ones(1, 2)).tolist() == [[10.0, 16.0]]


def test_a_rank_below_one_is_refused():
    refuses(partial(LowRankLinear, nn.Linear(2, 2)), "at least 1", rank=0)


def test_the_product_is_scaled_and_its_inputs_are_dropped():
    """alpha / r = 6 / 2 = 3; in training inputs of A are zero or doubled, those of W never."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    adapted = LowRankLinear(layer, rank=2, alpha=6.0, dropout=0.5)
    nn.init.ones_(adapted.down)
    nn.init.ones_(adapted.up)
    assert adapted.eval()(torch.ones(1, 1)).item() == 1 + 3 * 2
    torch.manual_seed(0)
    assert set(adapted.train()(torch.ones(50, 1)).flatten().tolist()) == {1.0, 13.0}


def test_a_starts_evenly_up_to_one_over_the_root_of_its_inputs():
    layer = LowRankConv2d(nn.Conv2d(4, 2, 5), rank=64)
    assert 0.095 < layer.down.abs().max() <= 0.1
    assert not layer.up.any()
