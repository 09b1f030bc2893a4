"""A product of low rank beside a layer, by hand."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from lightning_modules.layers.low_rank import LowRankLinear
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
