"""APFL: the invariants in docs/methods."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from lightning_modules.apfl import APFL
from lightning_modules.fedavg import FedAvg
from pfl.core.seeds import scoped
from pfl.core.state import total
from pfl.core.task import Classification
from pfl.core.types import Batch, Broadcast
from pfl.federation.sampling import UniformSampler
from pfl.training import client_round
from tests.helpers.draws import normal
from tests.helpers.federation import HEAVY, SGD, Federation, close, context, equal, fit, follow, job
from tests.helpers.toy import Point, ToyData, blobs, mlp, normed


@pytest.fixture
def square_loss(monkeypatch):
    """The loss u^2 / 2 of weights u, whose gradient is u."""
    monkeypatch.setattr(Classification, "loss", lambda task, u, y, weight: 0.5 * u @ u)


def walk(v, w, alpha=0.5, batches=1, round=1, **options):
    """Return (w, v, alpha) after a round of so many steps at rate 0.1."""
    data = ToyData(
        [(torch.zeros(batches, 1), torch.zeros(batches, dtype=torch.long))], batch_size=1
    )
    ctx = context(APFL(Point(0.0), optimizer=SGD, **options), data, "64-true")
    kept = {"personal.w": torch.tensor([v]), "alpha": torch.tensor(alpha, dtype=torch.float64)}
    sent = Broadcast({"net.w": torch.tensor([w], dtype=torch.float64)})
    result = client_round.train(ctx, job(data, broadcast=sent, kept=kept, round=round))
    values = (result.upload.shared["net.w"], result.kept["personal.w"], result.kept["alpha"])
    return [value.item() for value in values]


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


def test_the_share_rests_in_the_very_first_round():
    """Invariant 3. Its slope is <v - w, G> with v = w, before either has stepped."""
    _, (first, second) = follow(APFL(mlp(), optimizer=SGD), blobs(), 2)
    assert all(kept["alpha"] == 0.5 for kept in first.kept.values())
    assert all(kept["alpha"] != 0.5 for kept in second.kept.values())


@pytest.mark.usefixtures("square_loss")
class TestByHand:
    """Losses u^2 / 2, all rates 0.1."""

    def test_one_step_of_model_and_share(self):
        """Invariant 4.

        v = 2, w = 0: the mixture and G are 1, v = 2 - 0.1 * 0.5, alpha = 0.5 - 0.1 * 2.
        """
        assert walk(2.0, 0.0) == pytest.approx([0.0, 1.95, 0.3])
        assert walk(2.0, 0.0, v_grad="plain") == pytest.approx([0.0, 1.9, 0.3])

    def test_the_mixture_that_is_tested(self):
        """Invariant 4: 0.3 * 1.95 + 0.7 * 0 = 0.585; with another w = 1 it is 1.285."""
        data = ToyData([(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))])
        federation = Federation(APFL(Point(0.0), optimizer=SGD), data, precision="64-true")
        federation.kept[0] = {
            "personal.w": torch.tensor([1.95]),
            "alpha": torch.tensor(0.3, dtype=torch.float64),
        }
        for w, expected in ((0.0, 0.585), (1.0, 1.285)):
            federation.state.shared["net.w"].fill_(w)
            federation.personal(0)
            assert federation.module(torch.zeros(1, 1)).item() == pytest.approx(expected)

    def test_nothing_steps_before_anything_else(self):
        """Invariant 4: v = 2, w = 1: G = 1.5, g = 1: w = 0.9, v = 2 - 0.075, alpha = 0.5 - 0.15.

        Mixed after the step of w, G would be 1.45.
        """
        assert walk(2.0, 1.0) == pytest.approx([0.9, 1.925, 0.35])

    @pytest.mark.parametrize(
        ("alpha_update", "v", "alpha"),
        [
            # G = 0.35 * 1.925 + 0.65 * 0.9 = 1.25875; v - 0.035 G; alpha - 0.1 (1.925 - 0.9) G.
            ("step", 1.88094375, 0.220978125),
            ("round", 1.88094375, 0.35),
            # G = 0.5 (1.925 + 0.9) = 1.4125; v - 0.05 G.
            ("never", 1.854375, 0.5),
        ],
    )
    def test_when_the_share_moves(self, alpha_update, v, alpha):
        """Invariant 4. The second step, from the numbers of the test above."""
        found = walk(2.0, 1.0, batches=2, alpha_update=alpha_update)
        assert found == pytest.approx([0.81, v, alpha])

    def test_all_rates_fall_over_the_rounds(self):
        """Invariant 4. In round 3 at decay 0.5 they are 0.025."""
        found = walk(2.0, 1.0, lr_decay=0.5, round=3)
        assert found == pytest.approx([0.975, 2 - 0.025 * 0.75, 0.5 - 0.025 * 1.5])

    @pytest.mark.parametrize(("v", "w", "end"), [(20.0, 0.0, 0.0), (0.0, 20.0, 1.0)])
    def test_the_share_stays_within_its_bounds(self, v, w, end):
        """Invariant 6. A slope of 200 or -200."""
        assert walk(v, w)[2] == end


@pytest.mark.parametrize("net", [mlp, normed])
def test_the_slopes_are_those_of_automatic_differentiation(net):
    """Invariant 5.

    Of CE(alpha v + (1 - alpha) w) by alpha and by v; w follows its own loss alone.
    """
    module = APFL(net(), optimizer=SGD, alpha=0.25).double().train()
    for number, value in enumerate(module.personal.parameters()):
        value.data += 0.3 * normal(*value.shape, seed=number)
    module.rate.fill_(0.01)
    batch = Batch(*blobs().splits["train"][0])._replace(x=blobs().splits["train"][0][0].double())
    alpha = module.alpha.clone().requires_grad_()
    own = {n: p.detach().clone().requires_grad_() for n, p in module.personal.named_parameters()}
    common = {n: p.detach().clone().requires_grad_() for n, p in module.net.named_parameters()}
    mixed = {name: alpha * v + (1 - alpha) * common[name].detach() for name, v in own.items()}
    statistics = {n: b.clone() for n, b in module.personal.named_buffers()}
    logits = functional_call(module.personal, {**mixed, **statistics}, (batch.x,))
    loss = cross_entropy(logits, batch.y)
    (slope, *slopes) = torch.autograd.grad(loss, [alpha, *own.values()])
    logits = functional_call(module.net, {**common, **statistics}, (batch.x,))
    alone = torch.autograd.grad(cross_entropy(logits, batch.y), list(common.values()))

    outcome = module._step(batch)
    torch.testing.assert_close(outcome.terms["mixed"], loss)
    found = torch.autograd.grad(total(outcome.terms), list(module.parameters()))
    torch.testing.assert_close(found, (*alone, *slopes))
    torch.testing.assert_close((module.alpha - outcome.entries["alpha"]) / 0.01, slope)


def test_the_tested_model_of_who_sits_out_follows_the_global_one():
    """Invariant 7."""
    sampler = UniformSampler(0.4)
    module = APFL(mlp(), optimizer=HEAVY, alpha_update="step")
    _, snapshots = follow(module, blobs(), 5, sampler=sampler)
    before, after = snapshots[-2:]
    (client, *_) = before.kept.keys() - set(after.trained)
    losses = [snapshot.clients[client]["test/personal/loss"] for snapshot in (before, after)]
    assert losses[0] != losses[1]


def test_mixing_a_linear_models_outputs_is_the_same():
    """Invariant 8.

    Three full-batch steps; alpha moves at the first along dL/dlogits of the mixed logits.
    """

    def net():
        with scoped(1):
            return nn.Linear(5, 3)

    data, start = blobs(sizes=(9,), batch_size=99), net()
    with scoped(2):
        other = nn.Linear(5, 3)
    kept = {f"personal.{n}": v for n, v in other.state_dict().items()}
    kept["alpha"] = torch.tensor(0.5)
    sent = Broadcast({f"net.{n}": v for n, v in start.state_dict().items()})
    module = APFL(net(), optimizer=SGD, epochs=3)
    result = client_round.train(context(module, data), job(data, broadcast=sent, kept=kept))

    split, alpha = data.split(0, "train"), torch.tensor(0.5)
    optimizer = SGD([*start.parameters(), *other.parameters()])
    for step in range(3):
        share = alpha.clone().requires_grad_()
        logits = share * other(split.x) + (1 - share) * start(split.x).detach()
        optimizer.zero_grad()
        loss = cross_entropy(logits, split.targets) + cross_entropy(start(split.x), split.targets)
        loss.backward()
        optimizer.step()
        if step == 0:
            alpha = (alpha - 0.1 * share.grad).clamp(0, 1)
    expected = {f"personal.{n}": p.data for n, p in other.named_parameters()} | {"alpha": alpha}
    assert close(result.kept, expected)


def test_statistics_of_the_mixture_are_those_of_v():
    """A step's running mean is a tenth of the mean of the first layer at the mixed weights."""
    data, module = blobs(sizes=(9,), batch_size=99), APFL(normed(), optimizer=SGD, alpha=0.25)
    kept = {f"personal.{name}": value for name, value in normed(seed=2).state_dict().items()}
    sent = Broadcast({f"net.{n}": v for n, v in normed().state_dict().items() if v.dim()})
    result = client_round.train(context(module, data), job(data, broadcast=sent, kept=kept))
    v, w = normed(seed=2).backbone[0], normed().backbone[0]
    x = data.split(0, "train").x
    mean = (0.25 * v(x) + 0.75 * w(x)).mean(0)
    assert torch.allclose(result.kept["personal.backbone.1.running_mean"], 0.1 * mean, atol=1e-6)
    sent_up = result.upload.shared["net.backbone.1.running_mean"]
    assert torch.allclose(sent_up, 0.1 * w(x).mean(0), atol=1e-6)
