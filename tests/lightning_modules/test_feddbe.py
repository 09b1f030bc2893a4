"""FedDBE: the invariants in docs/methods."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from lightning_modules.feddbe import FedDBE
from lightning_modules.nets import SplitNet
from pfl.core.state import assign
from pfl.core.types import Batch
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedDBE: facts.Facts(
        travels=("net.",),
        stays=("memory",),
        extra=("running",),
        # Down after the first round: the common mean of six features.
        floats=(facts.NET + 6, facts.NET),
        needs_parts=True,
        not_private="phase 'mean': its number of steps differs",
    ),
}


def test_the_running_mean_goes_on_from_batch_to_batch():
    """0.5 * (2, 4) + 0.5 * 0, and then half of that and half of (4, 0); a constant before."""
    module = FedDBE(SplitNet(nn.Identity(), nn.Linear(2, 3)), kappa=1.0, beta=0.5)
    assign(module, {"consensus": torch.zeros(2)})
    for x, expected in (([2.0, 4.0], [1.0, 2.0]), ([4.0, 0.0], [2.5, 1.0])):
        _, entries, _ = module._step(Batch(torch.tensor([x]), torch.tensor([0])), True)
        assert entries["running"].tolist() == expected
        assign(module, entries)


def test_the_global_model_has_no_offset():
    fed = Federation(FedDBE(mlp(), optimizer=SGD), blobs())
    fed.round()
    fed.round()
    fed.context.load(fed.kept[0])
    fed.module.load_global(fed.server.broadcast(fed.state, 0, 3))
    assert not fed.module.memory.any()
    assert fed.kept[0]["memory"].any()


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, beta):
    fed = by_hand.federation(FedDBE, kappa=20.0, beta=beta)
    w, g = by_hand.initial(), None
    memory = dict.fromkeys(range(4), torch.zeros(6).double())

    def loss(state, x, y):
        nonlocal r
        z = by_hand.features(state, x, True)
        r = (1 - beta) * r.detach() + beta * z.mean(0)
        logits = linear(z + state.get("m", 0), state["head.weight"], state["head.bias"])
        pull = 0 if g is None else 20 * (r - g).square().sum() / 6 / 2
        return cross_entropy(logits, y) + pull

    for clients in cohorts:
        trained, means, sizes = [], [], [by_hand.SIZES[c] for c in clients]
        for c in clients:
            r = torch.zeros(6).double()
            steps = by_hand.batches(fed, c, phase="mean" if g is None else "local")
            start = w if g is None else w | {"m": memory[c]}
            trained.append(by_hand.descended(start, loss, steps))
            means.append({"r": r.detach()})
            memory[c] = trained[-1].pop("m", memory[c])
        if g is None:
            g = by_hand.averaged(means, sizes)["r"]
        else:
            w = by_hand.averaged(trained, sizes)
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), w)
        by_hand.compare(fed.state.consensus, {"consensus": g})
        for c, m in memory.items():
            x, _ = by_hand.samples(fed, c, "test")
            logits = linear(by_hand.features(w, x) + m, w["head.weight"], w["head.bias"])
            found = by_hand.predicted(fed, c)
            by_hand.compare((found, fed.module.memory), (logits, m))
