"""A head of one feature and two classes, d = 4, for hand-worked numbers of pFedVEM."""

from __future__ import annotations

import torch
from torch import nn

from lightning_modules.layers import inverse_softplus
from lightning_modules.nets import SplitNet
from lightning_modules.pfedvem import PFedVEM
from pfl.core.types import Batch, Broadcast, ClientInfo
from tests.helpers.draws import normal
from tests.helpers.toy import ToyData

D, C = 6, 3  # of tests.helpers.toy.mlp


def info(client=0, samples=4, round=1):
    return ClientInfo(client, samples, torch.zeros(C, dtype=torch.long), round, 10)


def line(method=PFedVEM, **options):
    """Build a network with one feature z = x and two classes: d = 4."""
    net = SplitNet(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
    module = method(net, **options).double()
    with torch.no_grad():
        module.net.backbone.weight.fill_(1.0)
    return module


def posterior(mean_weight, mean_bias, std, module):
    """Give the head these means, and one standard deviation everywhere."""
    with torch.no_grad():
        module.head.mean_weight.copy_(torch.tensor(mean_weight))
        module.head.mean_bias.copy_(torch.tensor(mean_bias))
        module.head.raw_std_weight.fill_(inverse_softplus(std))
        module.head.raw_std_bias.fill_(inverse_softplus(std))


def broadcast(module, weight, bias):
    entries = {name: module.state_dict()[name].clone() for name in module.shared_names()}
    server = {"server_head_weight": torch.tensor(weight), "server_head_bias": torch.tensor(bias)}
    return Broadcast(shared=entries | server)


def broadcast_of(module):
    return Broadcast({n: module.state_dict()[n].clone() for n in module.shared_names()})


def head_batch(samples, module, draws=5, seed=0):
    y = torch.arange(samples) % C
    shapes = module.head.noise_shapes(draws)
    noise = {name: normal(*shape, seed=seed + 7) for name, shape in shapes.items()}
    return Batch(normal(samples, D, seed=seed), y, None, noise)


def numbers(*x):
    x = torch.tensor(x, dtype=torch.float64).reshape(-1, 1)
    y = torch.arange(len(x)) % 2
    return ToyData([(x, y)], outputs=2, batch_size=2)
