"""FedTGP: the invariants in docs/methods, with hand-worked numbers."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from lightning_modules.fedtgp import FedTGP, FedTGPServer
from lightning_modules.losses import prototype_contrast
from lightning_modules.nets import PerClient
from lightning_modules.steps.prototypes import class_gaps
from pfl.core.seeds import generator
from pfl.core.types import ClientInfo, Upload
from tests.helpers import by_hand, facts
from tests.helpers.draws import normal
from tests.helpers.federation import SGD, equal, fit
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedTGP: facts.Facts(
        travels=("prototypes",),
        stays=("net.",),
        extra=("classes", "means"),
        floats=lambda info: (facts.MEANS, facts.of_classes(info)),
        fewer={"server_epochs": 3},
        variants=[{"proto_model": "received", "server_epochs": 3}],
        stacks=[{"proto_model": "received", "server_epochs": 3}],
        needs_classes=True,
        needs_parts=True,
        not_private="pass 'prototypes': it computes statistics of the samples without noise",
    ),
}

NAN = float("nan")


def upload(client, *rows):
    """Return an upload of (class, mean) pairs, D = 1."""
    classes = torch.tensor([number for number, _ in rows], dtype=torch.int32)
    means = torch.tensor([[mean] for _, mean in rows])
    return Upload(client, 4, {}, {"classes": classes, "means": means})


def server_of(classes=3, **options):
    server = FedTGPServer(**options)
    start = {"prototypes": torch.full((classes, 1), NAN)}
    return server, server.init(start, [ClientInfo(0, 4, None)])


def test_a_single_class_has_nothing_to_learn():
    """Invariant 4. A mean that lies on its prototype has a finite gradient."""
    table = torch.tensor([[2.0]], requires_grad=True)
    loss = prototype_contrast(torch.tensor([[2.0]]), torch.tensor([0]), table, 100.0)
    loss.backward()
    assert (loss.item(), table.grad.item()) == (0.0, 0.0)


def test_the_margin_follows_the_gaps():
    """Invariant 2.

    Class 0 has the means 0 and 2, so 1; the others 4 and 9. The gaps are 3, 3 and 5; at most tau.
    """
    uploads = [upload(0, (0, 0.0), (1, 4.0)), upload(1, (0, 2.0), (2, 9.0))]
    for margin, expected in ((100.0, 5.0), (3.5, 3.5)):
        server, state = server_of(margin=margin, server_epochs=1)
        assert server.aggregate(state, uploads).report["margin"] == expected
    means, classes = normal(4, 2), torch.tensor([0, 1, 1, 2])
    gaps = class_gaps(means, classes, 3)
    torch.testing.assert_close(class_gaps(3 * means, classes, 3), 3 * gaps)


def test_a_single_class_takes_the_largest_margin():
    server, state = server_of(margin=7.0)
    assert server.aggregate(state, [upload(0, (1, 2.0))]).report["margin"] == 7.0


def test_prototypes_are_drawn_from_the_runs_seed():
    drawn = []
    for seed in (1, 1, 2):
        server = FedTGPServer()
        server.seed = seed
        drawn.append(server.init({"prototypes": torch.zeros(3, 2)}, []).trained)
    assert equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0]["embedding"], drawn[2]["embedding"])


def test_backbones_may_differ_between_clients():
    wide = mlp(seed=2)
    wide.backbone = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))
    run = fit(FedTGP(PerClient([mlp(), wide]), server_epochs=2, optimizer=SGD), blobs(), 2)
    assert [len(run.kept[client]) for client in range(3)] == [4, 6, 4]
    assert run.server.shared["prototypes"].shape == (3, 6)


@pytest.mark.parametrize(
    "options", [{}, {"proto_model": "received"}, {"margin": 0.2}], ids=["usual", "received", "tau"]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    o = {"proto_model": "trained", "margin": 100.0, "server_lr": 0.3} | options
    fed = by_hand.federation(FedTGP, server_epochs=3, server_batch=4, **o)
    models, table = dict.fromkeys(range(4), by_hand.initial()), None
    net = by_hand.initial(fed.state.trained)

    def prototypes(e, w, b, w2, b2):
        return linear(linear(e, w, b).relu(), w2, b2)

    def of_client(w, x, y):
        z = by_hand.features(w, x, True)
        loss = cross_entropy(linear(z, w["head.weight"], w["head.bias"]), y)
        return loss if table is None else loss + 10 * (z - table[y]).square().mean()

    def of_server(net, z, y, delta):
        apart = (z[:, None] - prototypes(*net.values())).square().sum(-1).sqrt()
        return cross_entropy(-apart - delta * nn.functional.one_hot(y, 3).double(), y)

    for clients in cohorts:
        sent = []
        for c in clients:
            before = models[c]
            models[c] = by_hand.descended(before, of_client, by_hand.batches(fed, c))
            whose = before if o["proto_model"] == "received" else models[c]
            sent.append(by_hand.class_means(fed, c, whose))
        y, z = (torch.cat(parts) for parts in zip(*sent, strict=True))
        centres = {int(k): z[y == k].mean(0) for k in y.unique()}
        gaps = [
            min(math.dist(q, r) for m, r in centres.items() if m != k) for k, q in centres.items()
        ]
        delta = min(max(gaps), o["margin"])
        rng = generator(fed.server.seed, "means", fed.state.round)
        for _ in range(3):
            for rows in torch.randperm(len(y), generator=rng).split(4):
                net = by_hand.stepped(net, of_server, 0.3, z[rows], y[rows], delta)
        table = prototypes(*net.values())
        fed.round(*clients)
        by_hand.compare(fed.state.shared, {"prototypes": table})
        for c, w in models.items():
            x, _ = by_hand.samples(fed, c, "test")
            apart = (by_hand.features(w, x)[:, None] - table).square().sum(-1).sqrt()
            by_hand.compare(by_hand.predicted(fed, c), -apart)
            by_hand.compare(by_hand.of(fed.module.state_dict(), "net."), w)
