"""Local: the invariants in docs/methods."""

import pytest
from torch.nn.functional import cross_entropy

from lightning_modules.ditto import Ditto
from lightning_modules.fedavg import FedAvg
from lightning_modules.local import Local
from pfl.federation.sampling import UniformSampler
from tests.helpers import facts
from tests.helpers.federation import SGD, close, equal, fit, follow
from tests.helpers.toy import ToyData, blobs, mlp

FACTS = {
    Local: facts.Facts(
        stays=("net.",),
        floats=0,
    ),
}


def of(*clients, data=None, **options):
    """Return the data of some of the clients only."""
    data = data or blobs()
    return ToyData([data.splits["train"][client] for client in clients], **options)


def test_a_client_does_not_depend_on_the_others():
    """Invariant 1. Bitwise: another client added, and the other one's data exchanged."""
    two = fit(Local(mlp(), optimizer=SGD), of(0, 1))
    three = fit(Local(mlp(), optimizer=SGD), of(0, 2, 1))
    assert equal(two.kept[0], three.kept[0])
    assert not equal(two.kept[1], three.kept[1])


def test_nothing_travels():
    """Invariant 2."""
    row = fit(Local(mlp(), optimizer=SGD), blobs()).history[-1]
    assert row["comm/bytes_total"] == 0
    assert "test/global/acc" not in row


def test_one_client_of_fedavg_is_local():
    """Invariant 4."""
    local = fit(Local(mlp(), optimizer=SGD, epochs=2), of(0))
    fedavg = fit(FedAvg(mlp(), optimizer=SGD, epochs=2), of(0))
    assert equal(local.kept[0], fedavg.server.shared)


def test_rounds_are_one_long_training():
    """Invariant 5.

    T rounds of E epochs are one round of T E, the optimiser's state being kept; full batches.
    """
    options = {"optimizer": SGD, "persist_optimizer": True}
    rounds = fit(Local(mlp(), epochs=2, **options), blobs(batch_size=99), 3)
    once = fit(Local(mlp(), epochs=6, **options), blobs(batch_size=99), 1)
    assert all(close(rounds.kept[client], once.kept[client]) for client in range(3))


@pytest.mark.parametrize("method", [Local, Ditto])
def test_a_client_never_sampled_is_tested_with_the_initial_model(method):
    _, (first,) = follow(method(mlp(), optimizer=SGD), blobs(), 1, sampler=UniformSampler(0.4))
    for row in first.clients:
        split = blobs().split(row["client"], "test")
        untrained = cross_entropy(mlp()(split.x), split.targets).item()
        trained = row["client"] in first.trained
        assert (row["test/personal/loss"] == pytest.approx(untrained)) is not trained
