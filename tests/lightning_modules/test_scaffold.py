"""SCAFFOLD: the invariants in docs/methods."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.fedavg import FedAvg
from lightning_modules.scaffold import SCAFFOLD
from pfl.core.types import Broadcast, ClientInfo, Upload
from pfl.federation.sampling import UniformSampler
from pfl.training import client_round
from tests.helpers.federation import SGD, close, context, fit, follow, job
from tests.helpers.messages import parts
from tests.helpers.toy import Line, ToyData, blobs, lines, mlp, normed


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


def test_the_variate_is_the_mean_gradient_of_the_round():
    """Invariant 2.

    Steps of 0.1 along g_k - c_i + c; gradients are taken again along the same full batches.
    """
    data = blobs(batch_size=99)
    _, (first, second) = follow(SCAFFOLD(mlp(), optimizer=SGD, epochs=3), data, 2)
    split, net = data.split(1, "train"), mlp()
    net.load_state_dict({n.removeprefix("net."): v for n, v in first.server.shared.items()})
    correction = first.server.control - first.kept[1]["control"]
    weights, gradients = list(net.parameters()), []
    for _ in range(3):
        grads = torch.autograd.grad(cross_entropy(net(split.x), split.targets), weights)
        gradients.append(torch.cat([g.flatten() for g in grads]))
        step = torch.split(0.1 * (gradients[-1] + correction), [p.numel() for p in weights])
        with torch.no_grad():
            for weight, change in zip(weights, step, strict=True):
                weight -= change.view_as(weight)
    mean = torch.stack(gradients).mean(0)
    assert torch.allclose(second.kept[1]["control"], mean, atol=1e-6)


@pytest.mark.parametrize("fraction", [0.4, 0.7, 1.0])
def test_the_servers_variate_is_the_mean_over_all_clients(fraction):
    """Invariant 3."""
    sampler = UniformSampler(fraction)
    _, snapshots = follow(SCAFFOLD(mlp(), optimizer=SGD), blobs(), 4, sampler=sampler)
    for snapshot in snapshots:
        total = sum(kept["control"] for kept in snapshot.kept.values())
        assert torch.allclose(snapshot.server.control, total / 3, atol=1e-5)


def test_equal_clients_are_fedavg():
    """Invariant 5: c_i = c, so the correction is zero but for rounding."""
    pair = blobs(batch_size=99).splits["train"][0]
    data = ToyData([pair, pair], batch_size=99)
    scaffold = fit(SCAFFOLD(mlp(), optimizer=SGD, epochs=2), data, 3)
    fedavg = fit(FedAvg(mlp(), optimizer=SGD, epochs=2), data, 3)
    assert close(scaffold.server.shared, fedavg.server.shared, atol=1e-5)


def test_changes_add_up():
    """Invariant 6: c + (2 + 4) / 3 = 1 + 2 = 3 with three clients, of which two send."""
    server = SCAFFOLD(Line()).server()
    infos = [ClientInfo(client, 1, torch.ones(1)) for client in range(3)]
    state = server.init({"net.w": torch.tensor([1.0])}, infos)
    state = type(state)(shared=state.shared, control=torch.tensor([1.0]), clients=3)
    uploads = [
        Upload(c, 1, {"net.w": torch.tensor([w])}, {"change": torch.tensor([d])})
        for c, w, d in ((0, 3.0, 2.0), (2, 5.0, 4.0))
    ]
    after = server.aggregate(state, uploads)
    assert (after.control.item(), after.shared["net.w"].item()) == (3.0, 4.0)
    assert server.aggregate(state, []).control is state.control


def test_the_servers_step_scales_parameters_and_leaves_statistics():
    """x = 1, mean y = 4: 1 + 0.5 * 3 = 2.5; running statistics are averaged as they are."""
    server = SCAFFOLD(Line(), eta_g=0.5).server()
    state = server.init({"net.w": torch.tensor([1.0]), "net.mean": torch.zeros(1)}, [])
    state = type(state)(shared=state.shared, control=torch.zeros(1), clients=2)
    uploads = [
        Upload(c, 1, {"net.w": torch.tensor([w]), "net.mean": torch.tensor([w])}, extra)
        for c, w, extra in (
            (0, 3.0, {"change": torch.zeros(1)}),
            (1, 5.0, {"change": torch.zeros(1)}),
        )
    ]
    shared = server.aggregate(state, uploads).shared
    assert (shared["net.w"].item(), shared["net.mean"].item()) == (2.5, 4.0)


def test_the_rate_is_the_one_really_used():
    """At decay 0.5 the steps of round 3 are 0.025; the variate is the gradient all the same."""
    data = lines(2.0)
    module = Slope(Line(), optimizer=SGD, epochs=4, lr_decay=0.5)
    sent = Broadcast({"net.w": torch.tensor([1.0])}, {"common": torch.zeros(1)})
    result = client_round.train(context(module, data), job(data, broadcast=sent, round=3))
    assert result.upload.shared["net.w"].item() == pytest.approx(1 - 4 * 0.025 * 2)
    assert result.kept["control"].item() == pytest.approx(2.0, abs=1e-5)


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


@pytest.mark.parametrize("net", [mlp, normed])
def test_option_one_is_the_full_gradient_at_the_received_model(net):
    """Over three batches of 4, 4 and 1 samples, in eval mode."""
    data, module = blobs(), SCAFFOLD(net(), optimizer=SGD, option="I")
    state, split = module.state_dict(), data.split(0, "train")
    sent = {n: state[n].clone() for n in module.shared_names()}
    zero = torch.zeros_like(module.control)
    result = client_round.train(
        context(module, data), job(data, broadcast=Broadcast(sent, {"common": zero}))
    )
    own = net().eval()
    loss = cross_entropy(own(split.x), split.targets)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(own.parameters()))])
    assert torch.allclose(result.kept["control"], expected, atol=1e-6)
    assert torch.equal(result.upload.extra["change"], result.kept["control"])


def test_frozen_parameters_have_no_variate():
    net = mlp()
    net.head.requires_grad_(False)
    module = SCAFFOLD(net, optimizer=SGD)
    assert module.control.numel() == sum(p.numel() for p in net.backbone.parameters())
    run = fit(module, blobs(), 2)
    assert torch.equal(run.server.shared["net.head.bias"], mlp().head.bias)


def test_a_late_client_starts_with_a_zero_variate():
    sampler = UniformSampler(0.4)
    _, snapshots = follow(SCAFFOLD(mlp(), optimizer=SGD), blobs(), 1, sampler=sampler)
    (kept,) = snapshots[0].kept.values()
    assert torch.allclose(snapshots[0].server.control, kept["control"] / 3, atol=1e-7)


@pytest.mark.parametrize(
    "optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=0.1)]
)
def test_other_optimisers_are_warned_of(optimizer):
    with pytest.warns(UserWarning, match=parts("SCAFFOLD ~ plain SGD ~ got")):
        SCAFFOLD(mlp(), optimizer=optimizer)
