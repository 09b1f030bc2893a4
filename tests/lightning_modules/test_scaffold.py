"""SCAFFOLD: the invariants in docs/methods."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.scaffold import SCAFFOLD
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, context, fit, follow, job, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import Line, blobs, lines, mlp

FACTS = {
    SCAFFOLD: facts.Facts(
        travels=("net.",),
        stays=("control",),
        extra=("change",),
        # The network and a variate.
        floats=2 * facts.NET,
        variants=[{"option": "I", "eta_g": 0.5}],
        stacks=[{"option": "I"}],
    ),
}


class Slope(SCAFFOLD):
    """SCAFFOLD whose loss is w times the mean of x: a constant gradient."""

    def losses(self, batch):
        return {**super().losses(batch), "ce": (batch.x * self.net.w).mean()}


def test_two_clients_by_hand():
    """Gradients 2 and 4, three steps of 0.1 from x = 1.

    Round 1 has no correction: y = 0.4 and -0.2, x = 0.1, c_i = 2 and 4, c = 3. In round 2 both step
    along 3: y = 0.1 - 0.9 = x, and the variates stay.
    """
    module = Slope(Line(), optimizer=SGD, epochs=3)
    _, (first, second) = follow(module, lines(2.0, 4.0), 2)
    assert first.server.shared["net.w"].item() == pytest.approx(0.1)
    assert second.server.shared["net.w"].item() == pytest.approx(-0.8)
    for snapshot in (first, second):
        controls = [snapshot.kept[client]["control"].item() for client in (0, 1)]
        assert controls == pytest.approx([2.0, 4.0], abs=1e-5)
        assert snapshot.server.control.item() == pytest.approx(3.0, abs=1e-5)


@pytest.mark.parametrize("option", ["I", "II"])
def test_no_steps_leave_the_variate(option):
    """K = 0: with Option II zeros are sent, not a division by zero."""
    data = lines(2.0)
    module = Slope(Line(), optimizer=SGD, epochs=0)
    sent = Broadcast({"net.w": torch.tensor([1.0])}, {"common": torch.tensor([5.0])})
    kept = {"control": torch.tensor([7.0])}
    result = client_round.train(context(module, data), job(data, broadcast=sent, kept=kept))
    assert result.kept["control"].item() == 7.0
    assert result.upload.extra["change"].item() == 0.0


def test_frozen_parameters_have_no_variate():
    net = mlp()
    net.head.requires_grad_(False)
    module = SCAFFOLD(net, optimizer=SGD, travel_frozen=True)
    assert module.control.numel() == sum(p.numel() for p in net.backbone.parameters())
    run = fit(module, blobs(), 2)
    assert torch.equal(run.server.shared["net.head.bias"], mlp().head.bias)


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=0.1)]
)
def test_other_optimisers_are_warned_of(optimizer):
    with pytest.warns(UserWarning, match=parts("SCAFFOLD ~ plain SGD ~ got")):
        SCAFFOLD(mlp(), optimizer=optimizer)


@pytest.mark.parametrize(
    "options", [{}, {"option": "I"}, {"eta_g": 0.5, "weighting": "samples"}, {"lr_decay": 0.5}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(SCAFFOLD, optimizer=sgd(0.03), **options), by_hand.initial()
    names = by_hand.trained(w)
    common, *own = ({n: torch.zeros_like(w[n]) for n in names} for _ in range(5))
    for number, clients in enumerate(cohorts):
        sent, changes, rate = [], [], 0.03 * options.get("lr_decay", 1) ** number
        for c in clients:
            drift = {n: common[n] - own[c][n] for n in names}

            def loss(v, x, y, drift=drift):
                return by_hand.cross_entropy_of(v, x, y) + by_hand.inner(drift, v)

            steps = [*by_hand.batches(fed, c)]
            sent.append(by_hand.descended(w, loss, steps, rate, momentum=0, decay=0))
            if "option" in options:
                x, y = by_hand.samples(fed, c)
                still = {n: v.detach().requires_grad_(n in names) for n, v in w.items()}
                of_all = cross_entropy(by_hand.outputs(still, x), y)
                slopes = torch.autograd.grad(of_all, [still[n] for n in names])
                new = dict(zip(names, slopes, strict=True))
            else:
                new = {n: (w[n] - sent[-1][n]) / (len(steps) * rate) - drift[n] for n in names}
            changes.append({n: new[n] - own[c][n] for n in names})
            own[c] = new
        sizes = [by_hand.SIZES[c] if "weighting" in options else 1 for c in clients]
        mean, step = by_hand.averaged(sent, sizes), options.get("eta_g", 1)
        w = {n: w[n] + step * (v - w[n]) if n in names else v for n, v in mean.items()}
        common = {n: v + sum(change[n] for change in changes) / 4 for n, v in common.items()}
        fed.round(*clients)
        for c in range(4):
            by_hand.compare_tested(fed, c, w)
        by_hand.compare(fed.state.control, by_hand.vector(common))
