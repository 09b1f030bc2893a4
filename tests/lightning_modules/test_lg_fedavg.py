"""LG-FedAvg: the invariants in docs/methods."""

from lightning_modules.lg_fedavg import LGFedAvg
from pfl.federation.sampling import UniformSampler
from tests.helpers import facts
from tests.helpers.federation import (
    HEAVY,
    SGD,
    centralised,
    close,
    equal,
    fit,
    follow,
)
from tests.helpers.toy import blobs, mlp

FACTS = {
    LGFedAvg: facts.Facts(
        travels=("net.head.",),
        stays=("net.backbone.", "started"),
        floats=facts.HEAD,
    ),
}


def body(state):
    return {name: value for name, value in state.items() if "backbone" in name}


def test_one_client_is_centralised_sgd():
    """Invariant 5."""
    data = blobs(sizes=(9,), batch_size=99)
    run = fit(LGFedAvg(mlp(), optimizer=HEAVY, epochs=4), data, 1)
    assert close({**run.server.shared, **body(run.kept[0])}, centralised(data, 4))


def test_after_the_warm_start_bodies_go_their_own_way():
    """57 floats are the network, 21 the head. Round 2 hands the body out for the last time."""
    module = LGFedAvg(mlp(), optimizer=SGD, warm_start_rounds=1)
    run, (first, second, third) = follow(module, blobs(), 3)
    down = [row["comm/bytes_down"] for row in run.history]
    up = [row["comm/bytes_up"] for row in run.history]
    assert down == [3 * 57 * 4, 3 * 57 * 4, 3 * 21 * 4]
    assert up == [3 * 57 * 4, 3 * 21 * 4, 3 * 21 * 4]
    assert equal(body(first.server.shared), body(third.server.shared))
    assert second.server.started == (0, 1, 2)
    assert not equal(body(third.kept[0]), body(third.kept[1]))


def test_a_late_client_starts_from_the_warm_body():
    module = LGFedAvg(mlp(), optimizer=SGD, warm_start_rounds=1)
    sampler = UniformSampler(0.4)
    run, snapshots = follow(module, blobs(), 1, sampler=sampler)
    (trained,) = snapshots[0].trained
    late = (trained + 1) % 3
    sent = module.server().broadcast(run.server, late, 2)
    assert equal(sent.shared, run.server.shared)


def test_a_client_that_trains_without_uploading_keeps_its_body():
    """The server does not know that it has started; the client does."""
    sampler = UniformSampler(0.4, train_all=True)
    module = LGFedAvg(mlp(), optimizer=SGD, warm_start_rounds=1)
    _, snapshots = follow(module, blobs(), 4, sampler=sampler)
    warm = body(snapshots[0].server.shared)
    idle = sorted(set(range(3)) - set(snapshots[-1].server.started))
    assert idle
    moved = [
        (s.kept[idle[0]]["net.backbone.0.bias"] - warm["net.backbone.0.bias"]).norm()
        for s in snapshots[1:]
    ]
    assert moved[0] < moved[1] < moved[2]
