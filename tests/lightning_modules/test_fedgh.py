"""FedGH: the invariants in docs/methods, with hand-worked numbers."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, one_hot

from lightning_modules.fedgh import FedGH, FedGHServer
from lightning_modules.nets import PerClient, SplitNet
from lightning_modules.steps import descent, linear_descent
from pfl.core.seeds import generator
from pfl.core.task import Classification
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, fit
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedGH: facts.Facts(
        travels=("net.head.",),
        stays=("net.backbone.",),
        extra=("classes", "means"),
        floats=lambda info: (facts.HEAD, facts.of_classes(info)),
        fewer={"server_epochs": 3},
        variants=[{"order": "one_by_one"}],
        needs_classes=True,
        needs_parts=True,
        not_private="pass 'means': it computes statistics of the samples without noise",
    ),
}


def test_backbones_may_differ_between_clients():
    """With as many features, and one head."""
    wide = mlp(seed=2)
    wide.backbone = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))
    run = fit(FedGH(PerClient([mlp(), wide]), optimizer=SGD), blobs(), 2)
    assert [len(run.kept[client]) for client in range(3)] == [2, 4, 2]
    assert all("backbone" in name for kept in run.kept.values() for name in kept)
    assert {n: tuple(v.shape) for n, v in run.server.shared.items()} == {
        "net.head.weight": (3, 6),
        "net.head.bias": (3,),
    }


@pytest.mark.parametrize("size", [1, 10, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_a_step_of_a_linear_head_is_that_of_autograd(bias, size):
    """Loss and values, in batches of one, of few, and of what a last batch has left."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(70, 37, generator=rng).double(), torch.arange(70) % 11
    x = torch.cat([x, torch.ones(70, 1)], 1) if bias else x
    weight = torch.randn(11, x.shape[1], generator=rng).double()
    quick, slow = {"weight": weight.clone()}, {"weight": weight.clone()}
    of_autograd = descent(lambda own, x, y: cross_entropy(linear(x, own["weight"]), y), 0.3)
    rows = x, y, -one_hot(y, 11).double()
    for some in torch.randperm(70, generator=rng).split(size):
        found = linear_descent(0.3)(quick, *(each[some] for each in rows))
        torch.testing.assert_close(
            found, of_autograd(slow, x[some], y[some]), rtol=1e-12, atol=1e-12
        )
    torch.testing.assert_close(quick, slow, rtol=1e-12, atol=1e-12)
    assert not torch.equal(quick["weight"], weight)


@pytest.mark.parametrize(
    ("head", "task", "quick"),
    [
        (nn.Linear(6, 3), Classification(), True),
        (nn.Linear(6, 3), Classification(label_smoothing=0.1), False),
        (nn.Linear(6, 3, bias=False), Classification(), False),
        (nn.Sequential(nn.Linear(6, 3)), Classification(), False),
    ],
)
def test_a_linear_head_needs_no_autograd_at_the_server(head, task, quick, monkeypatch):
    """Its thousands of steps are a round's largest part; they are those of any other head."""

    def trained():
        net = SplitNet(mlp().backbone, deepcopy(head), features=6, num_classes=3)
        method = FedGH(net, optimizer=SGD, task=task, server_epochs=2, server_batch=2)
        run = fit(method, blobs(task=task), 2, precision="64-true")
        (loss,) = (value for name, value in run.history[-1].items() if "header_loss" in name)
        return {**run.server.shared, "loss": loss}

    calls, train = [], FedGHServer._train_linear
    monkeypatch.setattr(
        FedGHServer, "_train_linear", lambda self, *each: calls.append(1) or train(self, *each)
    )
    found = trained()
    assert bool(calls) == quick
    monkeypatch.setattr(FedGHServer, "_train_linear", FedGHServer._train)
    torch.testing.assert_close(trained(), found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ["batches", "one_by_one"])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, order):
    fed = by_hand.federation(FedGH, server_lr=0.3, server_epochs=3, server_batch=4, order=order)
    models = dict.fromkeys(range(4), by_hand.initial())
    header = {n: models[0][n] for n in ("head.weight", "head.bias")}

    def of_server(h, z, y):
        return cross_entropy(linear(z, *h.values()), y)

    for clients in cohorts:
        sent = []
        for c in clients:
            steps = by_hand.batches(fed, c)
            models[c] = by_hand.descended(models[c] | header, by_hand.cross_entropy_of, steps)
            sent.append(by_hand.class_means(fed, c, models[c]))
        y, z = (torch.cat(parts) for parts in zip(*sent, strict=True))
        rng = generator(fed.server.seed, "means", fed.state.round)
        steps = [rows for _ in range(3) for rows in torch.randperm(len(y), generator=rng).split(4)]
        for rows in steps if order == "batches" else torch.arange(len(y)).split(1):
            header = by_hand.stepped(header, of_server, 0.3, z[rows], y[rows])
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), header)
        for c in models:
            by_hand.compare_tested(fed, c, models[c] | header)
