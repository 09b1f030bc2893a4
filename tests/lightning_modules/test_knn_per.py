"""kNN-Per: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from lightning_modules.knn_per import KNNPer
from lightning_modules.nets import SplitNet
from pfl.core.types import Totals
from tests.helpers import by_hand, facts
from tests.helpers.draws import normal
from tests.helpers.federation import SGD, Federation
from tests.helpers.toy import ToyData, blobs, mlp

FACTS = {
    KNNPer: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
        variants=[{"mix": "logits", "tune": True}],
        stacks=[{"mix": "logits", "capacity": 5, "neighbours": 2, "tune": True}],
        needs_classes=True,
        needs_parts=True,
    ),
}


def make(net, *, capacity=12, neighbours=3, **options):
    return KNNPer(net, capacity=capacity, neighbours=neighbours, **options)


def knowing(*rows, classes=3, **options):
    """Return a method whose features are the inputs (D = 1), with stored (z, y); its head is 0."""
    net = SplitNet(nn.Identity(), nn.Linear(1, classes))
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    module = KNNPer(net, capacity=8, **options)
    return store(module, [z for z, _ in rows], [y for _, y in rows])


def store(module, z, y):
    totals = Totals({}, {"z": torch.tensor(z)[:, None], "y": torch.tensor(y)}, 0, len(y))
    module.load_state_dict({**module.state_dict(), **module._store(totals)})
    return module


def shares(module, z):
    return module(torch.tensor([[z]])).exp()[0].tolist()


def test_only_differences_of_distances_matter():
    """Invariant 3: far from all rows no weight underflows to nothing; here the nearest is sure."""
    module = knowing((0.0, 0), (1.0, 1), neighbours=2, share=1.0)
    assert shares(module, 100.0) == pytest.approx([0.0, 1.0, 0.0])


def test_equally_near_rows_count_in_their_order():
    module = knowing((1.0, 2), (-1.0, 0), (1.0, 1), neighbours=1, share=1.0)
    assert shares(module, 0.0)[2] == pytest.approx(1.0)


def test_lambda_is_tuned_on_validation_data():
    """The network gives class 1 three tenths, the only stored sample all.

    So class 1 is predicted if 0.3 (1 - lambda) + lambda > 0.7 (1 - lambda): from 0.29 on. The
    smallest of equally good ones is taken; a client without validation data has the given one.
    """
    net = knowing((0.0, 0), classes=2).net
    with torch.no_grad():
        net.head.bias.copy_(torch.tensor([0.7, 0.3]).log())
    x, y = torch.zeros(1, 1), torch.tensor([1])
    clients = [(x, y)] * 3
    data = ToyData(clients, val=[(x, y), (x, 1 - y), (x[:0], y[:0])], outputs=2)
    federation = Federation(make(net, share=0.75, tune=True, epochs=0), data)
    for client, expected in enumerate((0.29, 0.0, -1)):
        federation.test(client)
        assert federation.module.chosen.item() == pytest.approx(expected)
    # Without a choice lambda is 0.75, and class 0 has (1 - 0.75) 0.7.
    assert shares(federation.module, 0.0)[0] == pytest.approx(0.175)


def test_labels_of_tests_do_not_tune():
    data = blobs()
    other = blobs()
    other.splits["test"] = [(x, (y + 1) % 3) for x, y in other.splits["test"]]
    shares = []
    for found in (data, other):
        federation = Federation(make(mlp(), tune=True, optimizer=SGD), found)
        federation.round()
        federation.test(0)
        shares.append(federation.module.chosen.item())
    assert shares[0] == shares[1]


def test_the_gradient_is_finite_before_anything_is_stored():
    module = make(mlp()).double()
    module(normal(2, 5)).sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"neighbours": 20, "share": 0.3},
        {"scale": 0.1, "mix": "logits"},
        {"tune": True},
        {"tune": True, "mix": "logits"},
        {"capacity": 6, "neighbours": 3},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(KNNPer, **options), by_hand.initial()
    usual = {"neighbours": 10, "scale": 1, "capacity": 99, **options}
    k, scale, capacity = (usual[name] for name in ("neighbours", "scale", "capacity"))

    def features(x):
        return functional_call(by_hand.NET.backbone.eval(), by_hand.of(w, "backbone."), (x,))

    def votes(point, z, y):
        apart = (point - z).square().sum(1)
        near = sorted(range(len(z)), key=lambda j: (float(apart[j]), j))[:k]
        weight = torch.exp(-apart[near] / (z.shape[1] * scale))
        return torch.stack([weight[y[near] == label].sum() for label in range(3)]) / weight.sum()

    def parts(client, split):
        (x, y), (points, labels) = (by_hand.samples(fed, client, s) for s in ("train", split))
        count = min(len(y), capacity)
        rows = [j * len(y) // count for j in range(count)]
        z, y, logits = features(x[rows]), y[rows], by_hand.outputs(w, points)
        of_all = torch.stack([votes(point, z, y) for point in features(points)])
        return logits if "mix" in options else logits.softmax(1), of_all, labels

    for clients in cohorts:
        w = by_hand.fedavg(fed, w, clients)
        fed.round(*clients)
        for c in range(4):
            share = options.get("share", 0.5)
            if "tune" in options:
                own, near, y = parts(c, "val")
                mixed = [(n / 100 * near + (1 - n / 100) * own).argmax(1) for n in range(101)]
                right = [int((m == y).sum()) for m in mixed]
                share = right.index(max(right)) / 100
            own, near, _ = parts(c, "test")
            mixed = share * near + (1 - share) * own
            expected = mixed if "mix" in options else mixed.log()
            by_hand.compare(by_hand.predicted(fed, c), expected)
