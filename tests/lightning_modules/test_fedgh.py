"""FedGH: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from lightning_modules.fedgh import FedGH
from lightning_modules.nets import PerClient
from pfl.core.seeds import generator
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
