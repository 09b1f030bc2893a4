"""Per-FedAvg: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.func import grad as func_grad

from lightning_modules.losses import cross_entropy, linear
from lightning_modules.perfedavg import PerFedAvg, split_batch
from pfl.core.state import add, clone, fingerprint
from pfl.core.task import Classification
from pfl.core.types import Batch
from tests.helpers.draws import normal
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import Point, ToyData, blobs, mlp, normed

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


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_without_an_inner_step_it_is_a_step_on_the_second_part(variant):
    """Invariant 1: alpha = 0 is FedAvg at rate beta on D'."""
    net = mlp().double()
    part = split_batch(six(), 2 if variant == "fo" else 3)[1]
    found = direction(PerFedAvg(net, variant=variant, inner_lr=0.0), six())
    expected = slope(net, clone(dict(net.named_parameters())), part)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("delta", [1e-3, 0.1, 10.0])
def test_hessian_free_is_exact_on_a_quadratic(delta, monkeypatch):
    """Invariant 2: g = A w~ - b, d_FO = g, d_HF = (I - alpha A) g for any delta.

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


def test_a_linear_loss_makes_one_plain_step(monkeypatch):
    """Invariant 3: the gradient is (2, 5) everywhere, so FO and HF go along it."""

    def slanted(w, y, weight):
        return w @ torch.tensor([2.0, 5.0], dtype=torch.float64)

    monkeypatch.setattr(Classification, "loss", staticmethod(slanted))
    for variant in ("fo", "hf"):
        module = PerFedAvg(Point(1.0, 1.0), variant=variant, optimizer=sgd(0.1))
        data = ToyData([(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))])
        federation = Federation(module, data, precision="64-true")
        federation.round()
        assert federation.state.shared["net.w"].tolist() == pytest.approx([0.8, 0.5])


def test_hessian_free_converges_to_double_backward():
    """Invariant 5: against (I - alpha H) g by double backward; the error falls as delta^2."""
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


def test_evaluation_adapts_a_copy_on_training_data():
    """Invariant 4; one step of rate alpha on one batch."""
    federation = Federation(PerFedAvg(mlp(), optimizer=sgd(), inner_lr=0.05))
    federation.round()
    before = fingerprint([federation.state.shared])
    del federation.data.splits["test"]
    federation.test(0, split="train")
    assert fingerprint([federation.state.shared]) == before
    module = federation.module
    moved = [
        not torch.equal(value, federation.state.shared[f"net.{name}"])
        for name, value in module.net.named_parameters()
    ]
    assert all(moved)


@pytest.mark.parametrize(("options", "steps"), [({}, 1), ({"adapt_epochs": 2}, 6)])
def test_steps_of_adaptation(options, steps, monkeypatch):
    """Client 0 has nine samples, three batches of four an epoch."""
    federation = Federation(PerFedAvg(mlp(), optimizer=sgd(), **options))
    taken = []
    monkeypatch.setattr(federation.module, "on_train_batch_end", lambda *a: taken.append(a[2]))
    federation.test(0)
    assert len(taken) == steps


def test_clients_count_alike():
    federation = Federation(PerFedAvg(mlp(), optimizer=sgd()))
    federation.round()
    assert federation.state.client_report["weight"] == pytest.approx(dict.fromkeys(range(3), 1 / 3))


@pytest.mark.parametrize(("variant", "steps"), [("fo", 3), ("hf", 2)])
def test_part_size_sets_the_samples_of_each_part(variant, steps):
    """Nine samples, two in each part: FO takes 4 + 4 + 1, HF 6 + 3."""
    federation = Federation(PerFedAvg(mlp(), optimizer=sgd(), variant=variant, part_size=2))
    assert federation.train(0).steps == steps


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_a_single_sample_is_all_parts(variant):
    federation = Federation(PerFedAvg(mlp(), optimizer=sgd(), variant=variant), blobs(sizes=(1, 2)))
    before = federation.state.shared
    for result in federation.round():
        assert result.steps == 1
        assert not equal(result.upload.shared, before)


def test_split_batch():
    """Sample j goes to part j % parts; missing parts repeat the first."""
    batch = Batch(torch.tensor([10.0, 11.0]), torch.tensor([0, 1]))
    assert [part.x.tolist() for part in split_batch(batch, 3)] == [[10.0], [11.0], [10.0]]
    assert [part.x.tolist() for part in split_batch(batch, 2, least=2)] == [[10.0, 11.0]] * 2


def test_running_statistics_see_the_two_parts_and_not_the_difference():
    """Momentum 0.1 from 0: two updates by the inputs' mean m give 0.19 m; HF makes no more."""
    for variant in ("fo", "hf"):
        norm = nn.BatchNorm1d(2, affine=False)
        net = nn.Sequential(norm, nn.Linear(2, 3))
        module = PerFedAvg(net, variant=variant).train()
        row = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        x = row.repeat_interleave(module.parts, 0)
        found = module._meta(Batch(x, torch.zeros(len(x), dtype=torch.long))).entries
        expected = 0.19 * torch.tensor([2.0, 3.0])
        torch.testing.assert_close(found["net.0.running_mean"], expected)
        assert found["net.0.num_batches_tracked"].item() == 2


def test_batch_norm_gets_at_least_two_samples():
    federation = Federation(PerFedAvg(normed(), optimizer=sgd(), variant="hf"))
    assert all(result.finite for result in federation.round())


@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), torch.optim.Adam])
def test_steps_that_are_not_plain_are_refused(optimizer):
    module = PerFedAvg(mlp(), optimizer=optimizer)
    with pytest.raises(ValueError, match=parts("Per-FedAvg ~ SGD ~ momentum of 0 ~ got")):
        Federation(module).round()
