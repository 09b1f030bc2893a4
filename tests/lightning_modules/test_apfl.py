"""APFL: the invariants in docs/methods."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.apfl import APFL
from lightning_modules.fedavg import FedAvg
from tests.helpers import by_hand, facts
from tests.helpers.federation import HEAVY, equal, fit
from tests.helpers.toy import blobs, mlp

FACTS = {
    APFL: facts.Facts(
        travels=("net.",),
        stays=("personal.", "alpha"),
        floats=facts.NET,
        variants=[{"alpha_update": "step", "v_grad": "plain"}],
        stacks=[{"alpha_update": "step", "v_grad": "plain"}],
        not_private="keeps 'alpha'",
    ),
}


def personal(kept):
    """Return the local model among what a client keeps."""
    return {n.replace("personal.", "net."): v for n, v in kept.items() if n != "alpha"}


@pytest.mark.parametrize("v_grad", ["chain", "plain"])
def test_without_a_share_it_is_fedavg(v_grad):
    """Invariant 2. Momentum and weight decay do not move v, either."""
    module = APFL(mlp(), optimizer=HEAVY, alpha=0, alpha_update="never", v_grad=v_grad)
    apfl, fedavg = fit(module, blobs()), fit(FedAvg(mlp(), optimizer=HEAVY), blobs())
    start = {f"net.{name}": value for name, value in mlp().state_dict().items()}
    assert all(equal(personal(kept), start) for kept in apfl.kept.values())
    assert apfl.history[-1]["test/personal/loss"] == fedavg.history[-1]["test/personal/loss"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 1 - 2**-10, "alpha_update": "step"},
        {"v_grad": "plain", "alpha_update": "never", "weighting": "uniform"},
        {"lr_decay": 0.5},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    """Shares near one reach their bound."""
    fed, w = by_hand.federation(APFL, **options), by_hand.initial()
    vs, alphas = [by_hand.initial() for _ in range(4)], [options.get("alpha", 0.5)] * 4
    moves = options.get("alpha_update", "round")

    def mixture(v, w, share):
        return {n: v[n] if "running" in n else share * v[n] + (1 - share) * w[n] for n in v}

    for number, clients in enumerate(cohorts):
        sent, rate = [], 0.03 * options.get("lr_decay", 1) ** number
        for c in clients:
            steps = [] if moves == "never" else [c]

            def loss(both, x, y, c=c, steps=steps, rate=rate):
                v, w = (by_hand.of(both, stem) for stem in ("v.", "w."))
                share = torch.tensor(float(alphas[c]), dtype=torch.float64, requires_grad=True)
                still = {n: value.detach() for n, value in w.items()}
                mixed = by_hand.outputs(mixture(v, still, share), x, True)
                of_v = cross_entropy(mixed, y)
                if steps:
                    (slope,) = torch.autograd.grad(of_v, share, retain_graph=True)
                    alphas[c] = (share.detach() - rate * slope).clamp(0, 1)
                if moves == "round":
                    steps.clear()
                if "v_grad" in options:
                    of_v = of_v / share.detach()
                return of_v + by_hand.cross_entropy_of(w, x, y)

            both = {f"v.{n}": t for n, t in vs[c].items()} | {f"w.{n}": w[n] for n in w}
            both = by_hand.descended(both, loss, by_hand.batches(fed, c), rate)
            vs[c] = by_hand.of(both, "v.")
            sent.append(by_hand.of(both, "w."))
        sizes = [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        w = by_hand.averaged(sent, sizes)
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), w)
        for c, v in enumerate(vs):
            found, (x, _) = by_hand.predicted(fed, c), by_hand.samples(fed, c, "test")
            expected = by_hand.outputs(mixture(v, w, alphas[c]), x)
            by_hand.compare(found, expected)
            by_hand.compare(by_hand.of(fed.module.state_dict(), "personal."), v)
