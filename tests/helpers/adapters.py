"""Networks with low-rank adapters, and their outputs written out."""

import torch
from torch.nn.functional import cross_entropy

from lightning_modules import LoRA
from lightning_modules.layers import LowRank, LowRankLinear, make_constant
from pfl.core.seeds import scoped
from tests.helpers import by_hand
from tests.helpers.toy import normed

# s, as alpha is twice the rank.
SCALE = 2.0
DOWN, UP = "backbone.0.down", "backbone.0.up"
# Numbers of the factors of rank 2 of the first layer of tests.helpers.toy.mlp.
A, B = 2 * 5, 6 * 2


def adapted(net, rank=2, dropout=0.0):
    """Return a network with adapters drawn from a fixed seed, or one that has some as it is."""
    if any(isinstance(part, LowRank) for part in net.modules()):
        return net
    with scoped(7):
        return LoRA(net, rank=rank, alpha=SCALE * rank, dropout=dropout)


def make(net, method, **options):
    """Build a method on an adapted network."""
    return method(adapted(net), **options)


def start():
    """Return the initial values of all that is trained of the network of the loops by hand."""
    return by_hand.initial(adapted(normed(bias=False)).double().state_dict())


def outputs(w, x, base=None):
    """Return (B, C) logits of entries A, B and head; the rest is the network's own.

    Args:
        w: The entries.
        x: (B, 5) inputs.
        base: The frozen weight of the adapted layer, where it is not the network's.
    """
    layer, norm = by_hand.NET.backbone[:2]
    weight = layer.weight.detach() if base is None else base
    h = x @ weight.T + SCALE * x @ w[DOWN].T @ w[UP].T
    scale = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
    z = ((h - norm.running_mean) * scale + norm.bias.detach()).relu()
    return z @ w["head.weight"].T + w["head.bias"]


def loss(w, x, y):
    """Return the cross-entropy of a batch."""
    return cross_entropy(outputs(w, x), y)


def compare_tested(fed, client, w, names=None):
    """Compare a client's tested entries, and its outputs, with ``w``."""
    x, _ = by_hand.samples(fed, client, "test")
    found = by_hand.predicted(fed, client)
    state = by_hand.of(fed.module.state_dict(), "net.")
    names = state if names is None else names
    expected = {n: w[n] for n in names}
    by_hand.compare(({n: state[n] for n in names}, found), (expected, outputs(w, x)))


def line(weight, down, up, s=SCALE):
    """Return a layer of one output without bias, whose inputs have the weight, with rank 1."""
    layer = LowRankLinear(torch.nn.Linear(len(down), 1, bias=False), 1, alpha=s)
    with torch.no_grad():
        layer.weight.fill_(weight)
        layer.down.copy_(torch.tensor([down]))
        layer.up.fill_(up)
    make_constant(layer, ("weight",))
    return layer
