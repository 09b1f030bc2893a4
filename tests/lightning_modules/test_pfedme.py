"""pFedMe: the invariants in docs/methods, with hand-worked numbers."""

from dataclasses import replace

import pytest
import torch

from lightning_modules.pfedme import PFedMe
from pfl.core.task import Classification
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import Federation, sgd
from tests.helpers.toy import Point, ToyData, mlp

FACTS = {
    PFedMe: facts.Facts(
        travels=("net.",),
        stays=("personal.", "trained"),
        floats=facts.NET,
        fewer={"inner_steps": 2},
        variants=[{"local_steps": 3, "server_step": 0.5}],
        not_private="keeps 'personal.",
    ),
}


@pytest.fixture
def square_loss(monkeypatch):
    """The loss w^2 / 2, whose gradient is w."""
    monkeypatch.setattr(Classification, "loss", lambda task, w, y, weight: 0.5 * w @ w)


def point(*w, lr=0.1, batches=1, **options):
    """Return a federation of one client with so many batches of one sample."""
    x, y = torch.zeros(batches, 1), torch.zeros(batches, dtype=torch.long)
    module = PFedMe(Point(*w), optimizer=sgd(lr), **options)
    return Federation(module, ToyData([(x, y)], batch_size=1), precision="64-true")


def theta(federation, client=0):
    return federation.kept[client]["personal.module.w"].tolist()


def test_two_inner_steps_by_hand(square_loss):
    """w = 1, lambda = 2, eta_p = 0.1: theta = 1 - 0.1 = 0.9, then 0.9 - 0.1 (0.9 - 0.2) = 0.83.

    The outer step at rate 0.25: w = 1 - 0.25 * 2 * 0.17 = 0.915. Logged are the loss before the
    last inner step, 0.81 / 2, and lambda/2 * 0.17^2.
    """
    federation = point(1.0, lr=0.25, proximity=2.0, inner_lr=0.1, inner_steps=2)
    (result,) = federation.round()
    assert theta(federation) == pytest.approx([0.83])
    assert federation.state.shared["net.w"].tolist() == pytest.approx([0.915])
    assert result.train["local/ce"] == pytest.approx(0.405)
    assert result.train["local/proximal"] == pytest.approx(0.0289)


def test_local_steps_count_batches(square_loss):
    federation = point(1.0, batches=3, local_steps=7)
    assert federation.train(0).steps == 7


def test_right_after_training_theta_is_tested_too():
    federation = Federation(PFedMe(mlp(), optimizer=sgd()))
    result = client_round.train(federation.context, replace(federation.job(0), splits=("test",)))
    present = federation.module.state_dict()
    for name, value in federation.module.net.named_parameters():
        assert torch.equal(value, present[f"personal.module.{name}"])
        assert not torch.equal(value, result.upload.shared[f"net.{name}"])


@pytest.mark.parametrize(("decay", "expected"), [(0.5, 0.83), (1e-200, 1.0)])
def test_a_schedule_leaves_the_adaptation_alone(decay, expected, square_loss):
    """theta = 0.83 as after the first batch above; at a rate of 1e-400, which is 0, no step."""
    federation = point(1.0, proximity=2.0, inner_lr=0.1, inner_steps=2, lr_decay=decay)
    federation.number = 3
    assert federation.personal(0)["w"].tolist() == pytest.approx([expected])


@pytest.mark.parametrize(
    "options", [{"inner_steps": 3}, {"proximity": 4.0, "server_step": 2.0, "weighting": "uniform"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(PFedMe, inner_lr=0.02, **options), by_hand.initial()
    names, personal = by_hand.trained(w), {}
    pull, steps = options.get("proximity", 15.0), options.get("inner_steps", 5)

    def solved(theta, anchor, x, y):
        """Return theta after the inner steps; statistics take the batch in once."""
        last = {n: anchor[n].detach() for n in names}
        for step in range(steps):
            apart = theta if step == 0 else {n: v.clone() for n, v in theta.items()}
            apart = {n: v.detach().requires_grad_(n in names) for n, v in apart.items()}
            loss = by_hand.cross_entropy_of(apart, x, y)
            slopes = torch.autograd.grad(loss, [apart[n] for n in names])
            for n, slope in zip(names, slopes, strict=True):
                way = slope + pull * (apart[n] - last[n])
                theta = theta | {n: (apart[n] - 0.02 * way).detach()}
        return theta

    for clients in cohorts:
        sent = []
        for c in clients:
            personal[c] = {n: v.clone() for n, v in w.items()}

            def loss(v, x, y, c=c):
                personal[c] = solved(personal[c], v, x, y)
                v |= {n: personal[c][n].clone() for n in v if n not in names}
                return pull * sum((v[n] - personal[c][n]).square().sum() for n in names) / 2

            sent.append(by_hand.descended(w, loss, by_hand.batches(fed, c)))
        sizes = [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        mean, step = by_hand.averaged(sent, sizes), options.get("server_step", 1)
        w = {n: w[n] + step * (v - w[n]) if n in names else v for n, v in mean.items()}
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), w)
        for c in range(4):
            theta = personal.get(c) or {n: v.clone() for n, v in w.items()}
            for batch in () if c in personal else by_hand.batches(fed, c, 1, "adapt", ahead=0):
                theta = solved(theta, w, *batch)
            by_hand.compare_tested(fed, c, theta)
