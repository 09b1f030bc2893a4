"""FedDyn: the invariants in docs/methods.

By hand the losses are (x - b)^2 / 2, and a step at rate 1 / (1 + alpha) minimises a client's whole
objective exactly: at ``(b + alpha (w^t - H)) / (1 + alpha)``. In the paper's letters the client's
state is -alpha H_i, and the server's h is -alpha times how far it is ahead of the mean.
"""

import pytest
import torch

from lightning_modules.feddyn import FedDyn
from pfl.core.types import Broadcast, ClientInfo, Upload
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation, context, equal, fit, job, sgd
from tests.helpers.messages import parts
from tests.helpers.toy import Line, blobs, lines, mlp, normed

FACTS = {
    FedDyn: facts.Facts(
        travels=("net.",),
        stays=("travelled",),
        floats=facts.NET,
    ),
}


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
    """Invariants 3 and 5.

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
    run = fit(FedDyn(net, optimizer=SGD, travel_frozen=True), blobs(), 2)
    assert torch.equal(run.server.shared["net.head.bias"], mlp().head.bias)
    assert not run.server.ahead["net.head.bias"].any()


@pytest.mark.parametrize("options", [{"alpha": 0.1}, {"alpha": 0.5, "weighting": "samples"}])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(FedDyn, **options), by_hand.initial()
    names, alpha = by_hand.trained(w), options["alpha"]
    ways = [{n: torch.zeros_like(w[n]) for n in names} for _ in range(4)]
    for clients in cohorts:
        sent = []
        for c in clients:

            def loss(v, x, y, way=ways[c], start=w):
                pull = sum((v[n] - start[n]).square().sum() for n in names) / 2
                of_labels = by_hand.cross_entropy_of(v, x, y)
                return of_labels + alpha * (by_hand.inner(way, v) + pull)

            sent.append(by_hand.descended(w, loss, by_hand.batches(fed, c)))
            ways[c] = {n: way + sent[-1][n] - w[n] for n, way in ways[c].items()}
        sizes = [by_hand.SIZES[c] if "weighting" in options else 1 for c in clients]
        w, ahead = by_hand.averaged(sent, sizes), by_hand.averaged(ways, [1] * 4)
        w = {n: v + ahead[n] if n in names else v for n, v in w.items()}
        fed.round(*clients)
        for c in range(4):
            by_hand.compare_tested(fed, c, w)
        assert fed.state.report == {"ahead": pytest.approx(float(by_hand.vector(ahead).norm()))}
