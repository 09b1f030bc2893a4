"""pFedMe: the invariants in docs/methods, with hand-worked numbers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_modules.fedavg import FedAvg
from lightning_modules.pfedme import PFedMe
from pfl.core.task import Classification
from pfl.core.types import Batch
from pfl.training import client_round
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import Point, ToyData, mlp

SLOPE = torch.tensor([2.0, 5.0], dtype=torch.float64)


@pytest.fixture
def linear_loss(monkeypatch):
    """The loss (2, 5) w, whose gradient is the same everywhere."""
    monkeypatch.setattr(Classification, "loss", lambda task, w, y, weight: w @ SLOPE)


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


def test_without_proximity_the_global_model_stays():
    """Invariant 1."""
    federation = Federation(PFedMe(mlp(), proximity=0.0, optimizer=sgd()))
    before = federation.state.shared
    for result in federation.round():
        assert equal(result.upload.shared, before)
    assert equal(federation.state.shared, before)


def test_the_servers_step():
    """Invariant 2: beta = 0 stays, 1 is the average bitwise, 2 goes twice as far."""
    moved = {}
    for beta in (0.0, 1.0, 2.0):
        federation = Federation(PFedMe(mlp(), server_step=beta, optimizer=sgd()))
        before = federation.state.shared
        uploads = [result.upload for result in federation.round()]
        average = FedAvg(mlp()).server().aggregate(federation.server.init(before, []), uploads)
        moved[beta] = federation.state.shared
    assert equal(moved[0.0], before)
    assert equal(moved[1.0], average.shared)
    for name, value in before.items():
        torch.testing.assert_close(moved[2.0][name] - value, 2 * (moved[1.0][name] - value))


@pytest.mark.parametrize("proximity", [0.5, 4.0, 15.0])
def test_a_solved_linear_problem_is_fedavg(proximity, linear_loss):
    """Invariant 3: at eta_p = 1/lambda one step solves it, theta = w - g/lambda; w moves by -eta g.

    Two batches from (1, 1) at eta = 0.1 and g = (2, 5): (1 - 0.4, 1 - 1); theta from the second.
    """
    federation = point(
        1.0, 1.0, batches=2, proximity=proximity, inner_lr=1 / proximity, inner_steps=1
    )
    federation.round()
    assert federation.state.shared["net.w"].tolist() == pytest.approx([0.6, 0.0])
    expected = [0.8 - 2 / proximity, 0.5 - 5 / proximity]
    assert theta(federation) == pytest.approx(expected)


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


def test_the_next_batch_starts_from_the_last_theta(linear_loss):
    """lambda = 1, eta_p = 0.5, K = 1, eta = 1, g = (2, 5), from 0.

    Batch 1: theta = -(1, 2.5), w = 0 - (w - theta) = -(1, 2.5). Batch 2: theta = w - 0.5 g =
    -(2, 5), w = -(2, 5).
    """
    federation = point(0.0, 0.0, lr=1.0, batches=2, proximity=1.0, inner_lr=0.5, inner_steps=1)
    federation.round()
    assert theta(federation) == pytest.approx([-2.0, -5.0])
    assert federation.state.shared["net.w"].tolist() == pytest.approx([-2.0, -5.0])


def test_a_strong_pull_leaves_the_gradient(square_loss):
    """Invariant 4: lambda = 1e6 at eta_p = 1/(2 lambda): theta -> w, lambda (w - theta) -> w."""
    strong = 1e6
    federation = point(3.0, lr=1e-9, proximity=strong, inner_lr=1 / (2 * strong), inner_steps=60)
    federation.round()
    found = theta(federation)[0]
    assert found == pytest.approx(3.0, rel=1e-5)
    assert strong * (3.0 - found) == pytest.approx(3.0, rel=1e-5)


def test_a_full_outer_step_meets_theta(square_loss):
    """Invariant 5: eta lambda = 1."""
    federation = point(1.0, lr=0.25, proximity=4.0, batches=3, inner_lr=0.05)
    federation.round()
    assert federation.state.shared["net.w"].tolist() == pytest.approx(theta(federation))


def test_local_steps_count_batches(linear_loss):
    federation = point(1.0, 1.0, batches=3, local_steps=7)
    assert federation.train(0).steps == 7


def test_theta_is_tested_and_stays_while_a_client_is_away():
    federation = Federation(PFedMe(mlp(), optimizer=sgd()))
    federation.round()
    stored = {
        name.removeprefix("personal.module."): value
        for name, value in federation.kept[2].items()
        if name.startswith("personal.")
    }
    federation.round(0, 1)
    assert equal(federation.personal(2), stored)
    assert not equal(federation.personal(2), federation.personal(0))


def test_right_after_training_theta_is_tested_too():
    federation = Federation(PFedMe(mlp(), optimizer=sgd()))
    result = client_round.train(federation.context, replace(federation.job(0), splits=("test",)))
    present = federation.module.state_dict()
    for name, value in federation.module.net.named_parameters():
        assert torch.equal(value, present[f"personal.module.{name}"])
        assert not torch.equal(value, result.upload.shared[f"net.{name}"])


def test_an_untrained_client_makes_its_theta_from_the_global_model(square_loss):
    """K = 2 steps on each of 2 batches towards 0 with w = 1, lambda = 2, eta_p = 0.1.

    As above theta = 0.83 after the first; then 0.83 - 0.1 (0.83 - 0.34) = 0.781 and 0.781 - 0.1
    (0.781 - 0.438) = 0.7467. The global model stays.
    """
    options = {"proximity": 2.0, "inner_lr": 0.1, "inner_steps": 2, "batches": 2}
    federation = point(1.0, **options)
    assert federation.personal(0)["w"].tolist() == pytest.approx([0.7467])
    assert federation.state.shared["net.w"].tolist() == [1.0]


@pytest.mark.parametrize(("decay", "expected"), [(0.5, 0.83), (1e-200, 1.0)])
def test_a_schedule_leaves_the_adaptation_alone(decay, expected, square_loss):
    """theta = 0.83 as after the first batch above; at a rate of 1e-400, which is 0, no step."""
    federation = point(1.0, proximity=2.0, inner_lr=0.1, inner_steps=2, lr_decay=decay)
    federation.number = 3
    assert federation.personal(0)["w"].tolist() == pytest.approx([expected])


def test_who_has_a_theta_is_not_adapted(square_loss):
    federation = point(1.0)
    federation.round()
    expected = theta(federation)
    assert [part.name for part in federation.context.adapt] == ["adapt"]
    assert federation.personal(0)["w"].tolist() == expected


def test_running_statistics_take_a_batch_in_once():
    """Momentum 0.1 from 0 and five inner steps on one batch of mean (2, 3): 0.1 of it."""
    norm = nn.BatchNorm1d(2, affine=False)
    module = PFedMe(nn.Sequential(norm, nn.Linear(2, 3)), inner_steps=5).train()
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = module._envelope(Batch(x, torch.tensor([0, 1]))).entries
    for name in ("net", "personal.module"):
        torch.testing.assert_close(found[f"{name}.0.running_mean"], torch.tensor([0.2, 0.3]))
