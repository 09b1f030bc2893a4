"""Per-FedAvg: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.func import grad as func_grad

from lightning_modules.losses import cross_entropy, linear
from lightning_modules.perfedavg import PerFedAvg, split_batch
from pfl.core.state import add, clone
from pfl.core.task import Classification
from pfl.core.types import Batch
from tests.helpers import by_hand, facts
from tests.helpers.draws import normal
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import Point, blobs, mlp

FACTS = {
    PerFedAvg: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
        variants=[{"variant": "hf", "adapt_epochs": 2}],
        stacks=[{"variant": "hf", "inner_lr": 0.3}],
        not_private="phase 'meta': its term 'ce' is not a mean over the samples of a batch",
    ),
}

MATRIX = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
TARGET = torch.tensor([1.0, -1.0], dtype=torch.float64)


def quadratic(w, y, weight):
    """Return 1/2 w^T A w - b^T w, with gradient A w - b."""
    return 0.5 * w @ MATRIX @ w - TARGET @ w


def direction(module, batch):
    """Return d, as the optimiser sees it."""
    parameters = dict(module.net.named_parameters())
    loss = module._meta(batch).terms["ce"]
    return dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))


def six(seed=0):
    return Batch(normal(6, 5, seed=seed), torch.arange(6) % 3)


def slope(net, parameters, batch):
    def loss(parameters):
        return cross_entropy(functional_call(net, parameters, (batch.x,)), batch.y)

    return func_grad(loss)(parameters)


@pytest.mark.parametrize("delta", [1e-3, 0.1, 10.0])
def test_hessian_free_is_exact_on_a_quadratic(delta, monkeypatch):
    """Invariant 1: g = A w~ - b, d_FO = g, d_HF = (I - alpha A) g for any delta.

    At w = (1, 0), b = (1, -1), alpha = 0.1: A w - b = (2, 2), w~ = (0.8, -0.2), A w~ = (2.2, 0.4),
    g = (1.2, 1.4), A g = (5, 4), d_HF = (0.7, 1.0).
    """
    monkeypatch.setattr(Classification, "loss", staticmethod(quadratic))
    found = {
        variant: direction(
            PerFedAvg(Point(1.0, 0.0), variant=variant, delta=delta, inner_lr=0.1), six()
        )["w"].tolist()
        for variant in ("fo", "hf")
    }
    assert found["fo"] == pytest.approx([1.2, 1.4])
    assert found["hf"] == pytest.approx([0.7, 1.0])


def test_hessian_free_converges_to_double_backward():
    """Invariant 3: against (I - alpha H) g by double backward; the error falls as delta^2."""
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    first, second, third = split_batch(six(), 3)
    start = clone(dict(net.named_parameters()))
    alpha = 0.3
    g = slope(net, add(start, slope(net, start, first), -alpha), second)
    curved = func_grad(lambda p: linear(slope(net, p, third).values(), g.values()))(start)
    exact = add(g, curved, -alpha)
    errors = []
    for delta in (0.2, 0.1, 0.05):
        found = direction(PerFedAvg(net, variant="hf", inner_lr=alpha, delta=delta), six())
        errors.append(max(float((found[n] - exact[n]).abs().max()) for n in exact))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.15)


def test_the_reported_loss_is_that_of_the_adapted_model(monkeypatch):
    """f(w~) at w~ = (0.8, -0.2): 1/2 (0.8 * 2.2 - 0.2 * 0.4) - (0.8 + 0.2) = -0.16."""
    monkeypatch.setattr(Classification, "loss", staticmethod(quadratic))
    module = PerFedAvg(Point(1.0, 0.0), inner_lr=0.1)
    assert module._meta(six()).terms["ce"].item() == pytest.approx(-0.16)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_a_single_sample_is_all_parts(variant):
    federation = Federation(PerFedAvg(mlp(), optimizer=sgd(), variant=variant), blobs(sizes=(1, 2)))
    before = federation.state.shared
    for result in federation.round():
        assert result.steps == 1
        assert not equal(result.upload.shared, before)


@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), torch.optim.Adam])
def test_steps_that_are_not_plain_are_refused(optimizer):
    module = PerFedAvg(mlp(), optimizer=optimizer)
    with pytest.raises(ValueError, match=parts("Per-FedAvg ~ SGD ~ momentum of 0 ~ got")):
        Federation(module).round()


@pytest.mark.parametrize(
    "options", [{}, {"variant": "hf", "part_size": 2}, {"adapt_epochs": 2, "weighting": "samples"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    plain = {"optimizer": sgd(0.03), "inner_lr": 0.05, "delta": 0.1}
    fed, w = by_hand.federation(PerFedAvg, **plain, **options), by_hand.initial()
    names, parts = by_hand.trained(w), 3 if "variant" in options else 2

    def slopes(w, x, y):
        """Return the gradient; running statistics of ``w`` move."""
        w = {n: v.detach().requires_grad_(n in names) for n, v in w.items()}
        loss = by_hand.cross_entropy_of(w, x, y)
        return dict(zip(names, torch.autograd.grad(loss, [w[n] for n in names]), strict=True))

    def moved(w, way, scale):
        return w | {n: w[n] + scale * way[n] for n in names}

    def met(w, x, y):
        """Return the entries after a meta-step."""
        w = {n: v.clone() for n, v in w.items()}
        # A batch norm needs two samples in each part.
        rows = [slice(k, None, parts) if len(y) >= 2 * parts else slice(None) for k in range(parts)]
        first, second, *third = ((x[r], y[r]) for r in rows)
        way = slopes(moved(w, slopes(w, *first), -0.05), *second)
        for part in third:
            ahead, behind = (
                slopes({n: v.clone() for n, v in moved(w, way, sign * 0.1).items()}, *part)
                for sign in (1, -1)
            )
            way = {n: way[n] - 0.05 * (ahead[n] - behind[n]) / 0.2 for n in names}
        return moved(w, way, -0.03)

    for clients in cohorts:
        sent = []
        for c in clients:
            v, size = w, 6 if "part_size" in options else 4
            for x, y in by_hand.batches(fed, c, 2, "meta", size):
                # A batch of one sample is left out under batch norm.
                v = met(v, x, y) if len(y) > 1 else v
            sent.append(v)
        w = by_hand.averaged(
            sent, [by_hand.SIZES[c] if "weighting" in options else 1 for c in clients]
        )
        fed.round(*clients)
        for c in range(4):
            steps = [*by_hand.batches(fed, c, options.get("adapt_epochs", 1), "adapt", ahead=0)]
            steps = steps if "adapt_epochs" in options else steps[:1]
            tuned = by_hand.descended(w, by_hand.cross_entropy_of, steps, 0.05, momentum=0, decay=0)
            by_hand.compare(by_hand.of(fed.state.shared, "net."), w)
            by_hand.compare_tested(fed, c, tuned)
