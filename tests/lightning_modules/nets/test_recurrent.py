"""A recurrent network of tokens: the last state, by hand, and what decides it."""

from __future__ import annotations

from functools import partial

import torch

from lightning_modules.nets.recurrent import GRUNet
from pfl.core.seeds import scoped
from tests.helpers.messages import refuses


def test_features_are_the_gru_s_last_state():
    """One unit with weights of zero but in the new state: h = (1 - z) n + z h, with z = 1/2."""
    net = GRUNet(2, vocabulary=3, embedding=1, hidden=1)
    with torch.no_grad():
        for value in net.backbone.parameters():
            value.zero_()
        net.backbone[0].weight.copy_(torch.tensor([[0.0], [1.0], [2.0]]))
        net.backbone[1].weight_ih_l0[2] = 1.0
    first = 0.5 * torch.tanh(torch.tensor(1.0))
    second = 0.5 * torch.tanh(torch.tensor(2.0)) + 0.5 * first
    torch.testing.assert_close(net.backbone(torch.tensor([[1, 2]])), second.reshape(1, 1))


def test_order_counts_and_as_many_tokens_as_classes():
    with scoped(1):
        net = GRUNet(5, layers=2)
    assert net.backbone[0].num_embeddings == 5
    one, other = net(torch.tensor([[0, 1, 4], [4, 1, 0]]))
    assert one.shape == (5,)
    assert not torch.allclose(one, other)


def test_sizes_below_one_are_refused():
    refuses(partial(GRUNet, 5), "at least 1", hidden=0)
