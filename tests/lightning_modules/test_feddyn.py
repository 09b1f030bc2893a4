"""FedDyn: the invariants in docs/methods.

By hand the losses are (x - b)^2 / 2, and a step at rate 1 / (1 + alpha) minimises a client's whole
objective exactly: at ``(b + alpha (w^t - H)) / (1 + alpha)``. In the paper's letters the client's
state is -alpha H_i, and the server's h is -alpha times how far it is ahead of the mean.
"""

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from lightning_modules.fedavg import FedAvg
from lightning_modules.feddyn import FedDyn
from lightning_modules.fedprox import FedProx
from pfl.core.types import Broadcast, ClientInfo, Upload
from pfl.federation.sampling import UniformSampler
from pfl.training import client_round
from tests.helpers.federation import HEAVY, SGD, Federation, context, equal, fit, job, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import Line, blobs, lines, mlp, normed


class Bowl(FedDyn):
    """FedDyn on the losses (w - b)^2 / 2, with b the client's x."""

    def losses(self, batch):
        return {**super().losses(batch), "ce": 0.5 * (self.net.w - batch.x).square().mean()}


def bowls(*centres, alpha=1.0, start=0.0):
    module = Bowl(Line(start), alpha=alpha, optimizer=sgd(1 / (1 + alpha)))
    return Federation(module, lines(*centres))


def numbers(federation):
    """Return the server's model, its lead, and each client's -alpha H_i at alpha = 1."""
    state = federation.state
    gradients = [-kept["travelled"].item() for kept in federation.kept.values()]
    return [state.shared["net.w"].item(), state.ahead["net.w"].item(), *gradients]


def test_two_clients_by_hand():
    """Invariants 4 and 6.

    b = (3, -1): w_i = (1.5, -0.5), (1.25, 0.25), (1.125, 0.625); the server is at 1 at once.

    6: what a client keeps is its gradient at its own optimum, w_i - b_i.
    """
    federation = bowls(3.0, -1.0)
    for expected, trained in (
        ([1.0, 0.5, -1.5, 0.5], (1.5, -0.5)),
        ([1.0, 0.25, -1.75, 1.25], (1.25, 0.25)),
        ([1.0, 0.125, -1.875, 1.625], (1.125, 0.625)),
    ):
        results = federation.round()
        assert [r.upload.shared["net.w"].item() for r in results] == pytest.approx(trained)
        assert numbers(federation) == pytest.approx(expected)
        slopes = [w - b for w, b in zip(trained, (3.0, -1.0), strict=True)]
        assert numbers(federation)[2:] == pytest.approx(slopes)


def test_partial_participation_by_hand():
    """Invariant 5.

    The sum of all ways is divided by N = 2, not by who took part; that would give w = 3.
    """
    federation = bowls(3.0, -1.0)
    for clients, model, ahead in (((0,), 2.25, 0.75), ((1,), 0.5625, -0.0625), ((0, 1), 1, 0.1875)):
        federation.round(*clients)
        assert numbers(federation)[:2] == pytest.approx([model, ahead])


def test_one_client_by_hand():
    """Invariant 7.

    alpha = 0.5, b = 3: from 0 w_i = 2, H = 2; from w = 1 w_i = 5/3, with a wrong sign 8/3.
    """
    federation = bowls(3.0, alpha=0.5)
    (result,) = federation.round()
    assert result.upload.shared["net.w"].item() == pytest.approx(2.0)
    assert federation.kept[0]["travelled"].item() == pytest.approx(2.0)
    federation.state.shared["net.w"].fill_(1.0)
    assert federation.train(0).upload.shared["net.w"].item() == pytest.approx(5 / 3)


@pytest.mark.parametrize("fraction", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("net", [mlp, normed])
def test_the_server_is_ahead_by_the_mean_of_what_all_remember(net, fraction):
    """Invariant 1. Those that sit out count, too."""
    federation = Federation(FedDyn(net(), optimizer=HEAVY))
    sampler = UniformSampler(fraction)
    for number in range(4):
        cohort = sampler(range(3), torch.Generator().manual_seed(number), number)
        results = federation.round(*cohort.trains)
        ahead, shared = federation.state.ahead, federation.state.shared
        remembered = sum(kept["travelled"] for kept in federation.kept.values()) / 3
        flat = parameters_to_vector(ahead.values())
        assert torch.allclose(flat, remembered, atol=1e-5)
        uploads = [result.upload.shared for result in results]
        for name, value in shared.items():
            mean = sum(upload[name] for upload in uploads) / len(uploads)
            # Running statistics are averaged, and nothing is added to them.
            expected = mean + ahead[name] if name in ahead else mean
            assert torch.allclose(value, expected, atol=1e-5)
        assert set(ahead) == {f"net.{name}" for name, _ in net().named_parameters()}
        assert federation.state.report == {"ahead": pytest.approx(flat.norm().item())}


@pytest.mark.parametrize("clients", [(0, 1, 2), (0, 2)])
def test_the_first_round_trains_as_fedprox_and_the_server_goes_further(clients):
    """Invariant 2.

    Locally FedProx, bit for bit; the server goes 1 + m / N times as far as the mean.
    """
    dyn = Federation(FedDyn(mlp(), optimizer=HEAVY, epochs=2, alpha=0.5))
    prox = Federation(FedProx(mlp(), optimizer=HEAVY, epochs=2, mu=0.5, weighting="uniform"))
    start = prox.state.shared
    for one, other in zip(dyn.round(*clients), prox.round(*clients), strict=True):
        assert equal(one.upload.shared, other.upload.shared)
    for name, mean in prox.state.shared.items():
        way = (1 + len(clients) / 3) * (mean - start[name])
        assert torch.allclose(dyn.state.shared[name], start[name] + way, atol=1e-6)


def test_a_vanishing_alpha_is_not_fedavg():
    """Invariant 3. Clients train as in FedAvg, but the server still goes twice as far."""
    dyn = Federation(FedDyn(mlp(), optimizer=SGD, alpha=1e-9))
    fedavg = Federation(FedAvg(mlp(), optimizer=SGD, weighting="uniform"))
    start = fedavg.state.shared
    dyn.round()
    fedavg.round()
    for name, mean in fedavg.state.shared.items():
        found = dyn.state.shared[name]
        assert torch.allclose(found, start[name] + 2 * (mean - start[name]), atol=1e-5)


def test_at_a_stationary_point_nothing_moves():
    """Invariant 9."""
    federation = bowls(2.0, 2.0, start=2.0)
    for _ in range(3):
        federation.round()
        assert numbers(federation) == [2.0, 0.0, 0.0, 0.0]


def test_one_client_overshoots_in_the_first_round():
    """Invariant 10.

    b = 3 from 1 at alpha = 1: w_1 = 2, and the server goes to 3; b = 3 is where it stays.
    """
    federation = bowls(3.0, start=1.0)
    (result,) = federation.round()
    assert result.upload.shared["net.w"].item() == pytest.approx(2.0)
    assert numbers(federation)[0] == pytest.approx(3.0)


def test_the_mean_is_uniform_whatever_the_sizes():
    """Sizes 9, 6 and 4."""
    federation = Federation(FedDyn(mlp(), optimizer=SGD))
    uploads = [result.upload.shared["net.head.bias"] for result in federation.round()]
    ahead = federation.state.ahead["net.head.bias"]
    expected = sum(uploads) / 3 + ahead
    assert torch.allclose(federation.state.shared["net.head.bias"], expected, atol=1e-6)
    weighted = FedDyn(mlp(), weighting="samples").server()
    assert weighted.weighting == "samples"


def test_no_steps_leave_what_is_remembered():
    """Bitwise, though 1e-3 is lost when it is added to weights of 1e4 and taken off again."""
    data, module = lines(2.0), Bowl(Line(), optimizer=SGD, epochs=0)
    kept = {"travelled": torch.tensor([1e-3])}
    sent = Broadcast({"net.w": torch.tensor([1e4])})
    result = client_round.train(context(module, data), job(data, broadcast=sent, kept=kept))
    assert equal(result.kept, kept)


def test_a_client_that_takes_no_step_is_left_out_of_the_mean():
    """One sample under batch norm; it counts among the N = 2 over which ways are averaged."""
    data = blobs(sizes=(9, 1))
    federation = Federation(FedDyn(normed(), optimizer=SGD), data)
    with pytest.warns(UserWarning, match=parts("client 1 ~ 'local' ~ one sample")):
        first, second = federation.round()
    assert second.upload is None
    name = "net.head.bias"
    way = first.upload.shared[name] - normed().head.bias.detach()
    expected = first.upload.shared[name] + way / 2
    assert torch.allclose(federation.state.shared[name], expected, atol=1e-6)


def test_clients_without_data_are_not_counted():
    """Changes of 2 and 4 over N = 2: 3 + 3, where the third client holds nothing."""
    server = FedDyn(Line(0.0)).server()
    infos = [ClientInfo(client, samples, torch.ones(1)) for client, samples in enumerate((1, 5, 0))]
    state = server.init({"net.w": torch.tensor([0.0])}, infos)
    uploads = [Upload(c, 1, {"net.w": torch.tensor([w])}) for c, w in ((0, 2.0), (1, 4.0))]
    assert server.aggregate(state, uploads).shared["net.w"].item() == 6.0


def test_frozen_parameters_stay():
    net = mlp()
    net.head.requires_grad_(False)
    run = fit(FedDyn(net, optimizer=SGD), blobs(), 2)
    assert torch.equal(run.server.shared["net.head.bias"], mlp().head.bias)
    assert not run.server.ahead["net.head.bias"].any()
