"""Fine-tuning before the test, on copies."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from lightning_modules.fedavg import FedAvgP
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers.federation import SGD, close, context, differing, job
from tests.helpers.toy import blobs, mlp, normed

BODY, HEAD = "net.backbone.", "net.head."


def tuned(net, broadcast=None, rounds=1, data=None, **options):
    """Return the states before and after the test of client 0's copy, in round ``rounds``."""
    data = data or blobs(batch_size=99)
    module = FedAvgP(net, **{"optimizer": SGD, **options})
    shared = {n: v.clone() for n, v in module.state_dict().items()} | (broadcast or {})
    test = replace(job(data, broadcast=Broadcast(shared), round=rounds), splits=("test",))
    client_round.test(context(module, data), test)
    return shared, {name: value.clone() for name, value in module.state_dict().items()}


def test_two_epochs_by_hand():
    """Two full-batch steps at rate 0.3 from the received model."""
    net, data = mlp(seed=4), blobs(batch_size=99)
    split, optimizer = data.split(0, "train"), torch.optim.SGD(net.parameters(), lr=0.3)
    _, after = tuned(mlp(seed=4), ft_epochs=2, ft_lr=0.3)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(net(split.x), split.targets).backward()
        optimizer.step()
    assert close(after, {f"net.{name}": p.data for name, p in net.named_parameters()})


def test_default_epochs_are_the_local_ones():
    assert FedAvgP(mlp(), epochs=7).adapt()[0].epochs == 7
    assert FedAvgP(mlp(), epochs=7, ft_epochs=2).adapt()[0].epochs == 2


def test_batch_norm_can_keep_its_statistics():
    statistics = {f"{BODY}1.running_mean", f"{BODY}1.running_var", f"{BODY}1.num_batches_tracked"}
    assert statistics <= differing(*tuned(normed(), ft_epochs=1))
    assert not statistics & differing(*tuned(normed(), ft_epochs=1, ft_bn="eval"))


def test_the_rate_follows_the_decay_of_training():
    """After round 3 at decay 0.5 the rate is a quarter: a step of 0.025 instead of 0.1."""
    before, early = tuned(mlp(), ft_epochs=1)
    _, late = tuned(mlp(), ft_epochs=1, lr_decay=0.5, rounds=3)
    name = "net.head.bias"
    full, quarter = early[name] - before[name], late[name] - before[name]
    assert torch.allclose(quarter, full / 4, atol=1e-7)
