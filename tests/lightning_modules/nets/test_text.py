"""The text classifier: padding changes nothing, and it learns what can be learned."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from datamodules import TensorData
from datamodules.partition.partitioner import IID
from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import TextNet
from pfl.core.seeds import generator
from tests.helpers.federation import fit, sgd
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


def test_fedavg_comes_close_to_the_best_loss_there_is():
    """Texts of six tokens, drawn one by one by their class's own frequencies, and padded.

    No model has a smaller expected loss than the true posterior, which is proportional to the
    product of the tokens' frequencies. FedAvg comes within 5 % of it on the same test texts.
    """
    rng = generator(4, "made texts")
    classes, vocabulary, samples, length = 3, 12, 4000, 6
    frequencies = (0.7 * torch.randn(classes, vocabulary, generator=rng)).softmax(1)
    y = torch.randint(classes, (samples,), generator=rng)
    words = torch.multinomial(frequencies[y], length, replacement=True, generator=rng)
    posterior = frequencies.log()[:, words].sum(-1).T
    x = F.pad(words + 1, (0, 3))
    half = samples // 2
    arrays = {"x": x[:half], "y": y[:half], "x_test": x[half:], "y_test": y[half:]}
    data = TensorData(arrays, 4, IID(), batch_size=50, test_protocol="global")
    net = TextNet(classes, vocabulary + 1, embedding=8, hidden=())
    run = fit(FedAvg(net, optimizer=sgd(1.0, momentum=0.9)), data, rounds=8)
    best = float(F.cross_entropy(posterior[half:], y[half:]))
    chance = float(torch.tensor(classes).log())
    assert best < 0.7 * chance
    assert run.history[-1]["test/pooled/loss"] < 1.05 * best
