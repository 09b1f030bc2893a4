"""FedAvg and FedAvg-P: the invariants in docs/methods."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.fedavg import FedAvg, FedAvgP
from pfl.core.server import Server, ServerState
from pfl.core.types import Upload
from tests.helpers import by_hand, facts
from tests.helpers.federation import HEAVY, SGD, centralised, close, fit, sgd
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedAvg: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
    ),
    FedAvgP: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
    ),
}


def upload(client, samples, *values):
    return Upload(client, samples, {"net.w": torch.tensor(values)})


def test_weights_sum_to_one_and_permuting_changes_nothing():
    """Invariant 1: (1 * 10 + 3 * 2) / 4 = 4."""
    uploads = [upload(0, 1, 10.0), upload(1, 3, 2.0)]
    server, state = Server(), ServerState({})
    assert server.shares(uploads).tolist() == [0.25, 0.75]
    for order in (uploads, uploads[::-1]):
        assert server.aggregate(state, order).shared["net.w"].item() == 4.0
    uniform = Server("uniform").aggregate(state, uploads)
    assert uniform.shared["net.w"].item() == 6.0


def test_equal_uploads_give_that_value_bitwise():
    """Invariant 2."""
    value = (0.1, 1 / 3, 1e-7)
    uploads = [upload(client, samples, *value) for client, samples in enumerate((3, 5, 9))]
    mean = Server().aggregate(ServerState({}), uploads).shared["net.w"]
    assert torch.equal(mean, torch.tensor(value))


def test_one_full_batch_is_a_step_of_centralised_descent():
    """Invariant 3."""
    data, net = blobs(batch_size=99), mlp()
    splits = [data.split(client, "train") for client in range(3)]
    x, y = torch.cat([s.x for s in splits]), torch.cat([s.targets for s in splits])
    # The sample-weighted mean of the clients' mean losses is the mean loss over all samples.
    grads = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
    expected = {
        f"net.{name}": value.detach() - 0.1 * g
        for (name, value), g in zip(net.named_parameters(), grads, strict=True)
    }
    assert close(fit(FedAvg(net, optimizer=SGD), data, 1).server.shared, expected)


def test_one_client_is_centralised_sgd():
    """Invariant 4."""
    data = blobs(sizes=(9,), batch_size=99)
    run = fit(FedAvg(mlp(), optimizer=HEAVY, epochs=3, persist_optimizer=True), data, 2)
    assert close(run.server.shared, centralised(data, 6))


@by_hand.up_to_rounding
def follows_the_loop(rate):
    optimizer = sgd(rate, momentum=0.9, weight_decay=0.01)
    fed, w = by_hand.federation(FedAvg, optimizer=optimizer), by_hand.initial()
    for clients in by_hand.COHORTS["half"]:
        w = by_hand.fedavg(fed, w, clients)
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), w)


def test_a_federation_by_hand_finds_one_part_in_a_million():
    follows_the_loop(rate=0.03)
    for wrong in (1 + 1e-6, 1 - 1e-6):
        with pytest.raises(AssertionError, match="rounding alone makes"):
            follows_the_loop(rate=0.03 * wrong)
