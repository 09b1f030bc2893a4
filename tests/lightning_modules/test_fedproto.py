"""FedProto: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from lightning_modules.fedproto import FedProto
from lightning_modules.nets import SplitNet
from lightning_modules.steps.prototypes import ClassMeans, mask_unknown
from pfl.core.types import Upload
from tests.helpers import by_hand, facts
from tests.helpers.extras import needs
from tests.helpers.federation import fit, sgd
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedProto: facts.Facts(
        travels=("prototypes",),
        stays=("net.",),
        extra=("classes", "means", "counts"),
        floats=lambda info: (facts.MEANS, facts.of_classes(info)),
        stacks=[{"weighting": "samples"}],
        needs_classes=True,
        needs_parts=True,
        not_private="pass 'prototypes': it computes statistics of the samples without noise",
    ),
}

NAN = float("nan")


def identity():
    """Build a network whose features are the inputs, D = 2, with a head of zeros."""
    net = SplitNet(nn.Identity(), nn.Linear(2, 3))
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    return net


@needs("sites")
def test_counts_of_samples_pass_the_check_of_what_sites_send():
    runs = [
        fit(FedProto(mlp(), optimizer=sgd(), weighting="samples"), blobs(), 2, engine=engine)
        for engine in ("sequential", "loopback")
    ]
    assert runs[0].fingerprint == runs[1].fingerprint


def test_the_nearest_prototype_is_predicted():
    """Prototypes 0 and 4 on a line: 1.9 is nearer to the first, 2.1 to the second.

    Class 2 has none and is predicted only before there are any, by the head, which is zero but for
    the bias of class 2.
    """
    net = identity()
    with torch.no_grad():
        net.head.bias[2] = 1.0
    x = torch.tensor([[1.9, 0.0], [2.1, 0.0]])
    table = torch.tensor([[0.0, 0.0], [4.0, 0.0], [NAN, NAN]])
    module = FedProto(net)
    assert module(x).argmax(-1).tolist() == [2, 2]
    module.prototypes.copy_(table)
    logits = module(x)
    assert logits.isfinite().all()
    assert logits.argmax(-1).tolist() == [0, 1]


def test_merging_ignores_rows_of_weight_zero():
    """A client without a class may send anything for it: (2 * 1 + 1 * 4) / 3 = 2."""
    previous = torch.tensor([[NAN], [7.0]])
    tables = [torch.tensor([[1.0], [NAN]]), torch.tensor([[4.0], [5.0]])]
    counts = [torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])]
    found = ClassMeans(previous, lambda upload: (tables[upload.client], counts[upload.client]))
    for client in range(2):
        found.add(Upload(client, 1, {}))
    assert found.value().tolist() == [[2.0], [7.0]]
    values, present = mask_unknown(previous)
    assert (values.tolist(), present.tolist()) == ([[0.0], [7.0]], [0.0, 1.0])


@pytest.mark.parametrize("options", [{}, {"weighting": "samples", "prototype_weight": 2.0}])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, weight = by_hand.federation(FedProto, **options), options.get("prototype_weight", 1.0)
    models, table = dict.fromkeys(range(4), by_hand.initial()), {}

    def loss(v, x, y):
        z = by_hand.features(v, x, True)
        near = [
            (row - table[int(k)]).square().mean()
            for row, k in zip(z, y, strict=True)
            if int(k) in table
        ]
        logits = linear(z, v["head.weight"], v["head.bias"])
        return cross_entropy(logits, y) + weight * sum(near) / len(y)

    for clients in cohorts:
        rows = {}
        for c in clients:
            models[c] = by_hand.descended(models[c], loss, by_hand.batches(fed, c))
            labels = by_hand.samples(fed, c)[1]
            for k, mean in zip(*by_hand.class_means(fed, c, models[c]), strict=True):
                share = int((labels == k).sum()) if "weighting" in options else 1
                rows.setdefault(int(k), []).append(({"": mean}, share))
        table |= {k: by_hand.averaged(*zip(*pairs, strict=True))[""] for k, pairs in rows.items()}
        fed.round(*clients)
        assert fed.state.report == {"known_classes": len(table)}
        for c, w in models.items():
            z = by_hand.features(w, by_hand.samples(fed, c, "test")[0])
            found = -by_hand.predicted(fed, c)
            by_hand.compare(by_hand.of(fed.module.state_dict(), "net."), w)
            for k, mean in table.items():
                by_hand.compare(found[:, k], (z - mean).norm(dim=1))
