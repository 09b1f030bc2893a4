"""The text classifier: padding changes nothing, and it learns what can be learned."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lightning_modules.nets import TextNet
from pfl.core.seeds import generator
from tests.helpers.messages import refuses


@pytest.mark.parametrize("texts", [1, 41])
@pytest.mark.parametrize("more", [1, 2, 7, 30, 300])
def test_padding_changes_no_bit_of_a_logit(more, texts):
    """Neither its length nor where a batch of texts of up to 40 tokens is cut off."""
    net = TextNet(3, vocabulary=9, embedding=5, hidden=4)
    tokens = torch.randint(1, 9, (41, 40), generator=generator(1, "tokens"))
    for longest in (3, 17, 40):
        real = torch.arange(40) < torch.arange(41)[:, None].clamp_max(longest)
        batch = (tokens * real)[-texts:, :longest]
        assert torch.equal(net(F.pad(batch, (0, more))), net(batch))


def test_the_mean_is_over_real_tokens():
    """Embeddings 1, 2, 3: the mean of tokens 1 and 3 is 2, of none 0, whatever padding holds."""
    layer = TextNet(2, vocabulary=4, embedding=1).backbone.embedding
    layer.weight.data = torch.tensor([[9.0], [1.0], [2.0], [3.0]])
    assert layer(torch.tensor([[1, 3, 0], [0, 0, 0]])).tolist() == [[2.0], [0.0]]


def test_padding_takes_no_gradient():
    net = TextNet(2, vocabulary=4)
    net(torch.tensor([[1, 0], [2, 3]])).sum().backward()
    assert not net.backbone.embedding.weight.grad[0].any()


def test_sizes_below_one_are_refused():
    refuses(partial(TextNet, 2), "at least 1", vocabulary=0)
