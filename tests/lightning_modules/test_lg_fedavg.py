"""LG-FedAvg: the invariants in docs/methods."""

from functools import partial

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from lightning_modules.lg_fedavg import LGFedAvg
from lightning_modules.local import Local
from pfl.core.types import Broadcast, Upload
from pfl.federation.sampling import UniformSampler
from pfl.training import client_round
from tests.helpers.federation import (
    HEAVY,
    SGD,
    centralised,
    close,
    context,
    equal,
    fit,
    follow,
    job,
)
from tests.helpers.messages import parts, refuses
from tests.helpers.toy import blobs, mlp


def floats(module):
    """Count C (D + 1)."""
    size = module.net.num_classes * (module.net.features + 1)
    return size, size


def body(state):
    return {name: value for name, value in state.items() if "backbone" in name}


def test_all_layers_are_fedavg_and_none_is_local():
    """Invariant 2."""
    fedavg = fit(FedAvg(mlp(), optimizer=SGD), blobs())
    every = fit(LGFedAvg(mlp(), optimizer=SGD, num_global_layers=2), blobs())
    assert equal(every.server.shared, fedavg.server.shared)
    alone = fit(Local(mlp(), optimizer=SGD), blobs())
    none = fit(LGFedAvg(mlp(), optimizer=SGD, num_global_layers=0), blobs())
    for client in range(3):
        started = none.kept[client].pop("started")
        assert started
        assert equal(none.kept[client], alone.kept[client])


def test_heads_are_the_same_and_bodies_differ():
    """Invariant 3."""
    run = fit(LGFedAvg(mlp(), optimizer=SGD), blobs())
    models = []
    for client in range(2):
        module, data = LGFedAvg(mlp(), optimizer=SGD), blobs()
        test = job(data, client, Broadcast(run.server.shared), run.kept[client])
        client_round.test(context(module, data), test)
        models.append({n: v.clone() for n, v in module.net.state_dict().items()})
    for name in models[0]:
        assert torch.equal(models[0][name], models[1][name]) is ("head" in name)


def test_the_last_layer_is_uploaded_not_the_first():
    """Invariant 4."""
    data, module = blobs(), LGFedAvg(mlp(), optimizer=SGD)
    upload = client_round.train(context(module, data), job(data)).upload
    assert set(upload.shared) == {"net.head.weight", "net.head.bias"}
    assert upload.extra == {}


def test_one_client_is_centralised_sgd():
    """Invariant 5."""
    data = blobs(sizes=(9,), batch_size=99)
    run = fit(LGFedAvg(mlp(), optimizer=HEAVY, epochs=4), data, 1)
    assert close({**run.server.shared, **body(run.kept[0])}, centralised(data, 4))


def test_uniform_average_by_hand():
    """(1 + 5) / 2 = 3 for any numbers of samples; weighted by 9 and 3 it is 2."""
    for weighting, expected in (("uniform", 3.0), ("samples", 2.0)):
        server = LGFedAvg(mlp(), weighting=weighting).server()
        state = server.init({"net.head.bias": torch.zeros(1)}, [])
        uploads = [
            Upload(client, samples, {"net.head.bias": torch.tensor([value])})
            for client, samples, value in ((0, 9, 1.0), (1, 3, 5.0))
        ]
        assert server.aggregate(state, uploads).shared["net.head.bias"].item() == expected


def test_warm_start_is_fedavg_at_first():
    warm = fit(LGFedAvg(mlp(), optimizer=SGD, warm_start_rounds=2), blobs(), 2)
    fedavg = fit(FedAvg(mlp(), optimizer=SGD), blobs(), 2)
    assert equal(warm.server.shared, fedavg.server.shared)
    assert warm.history[-1]["comm/bytes_total"] == fedavg.history[-1]["comm/bytes_total"]
    assert warm.history[-1]["test/personal/loss"] == fedavg.history[-1]["test/personal/loss"]


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


def test_bad_numbers_are_refused():
    make = partial(LGFedAvg, mlp())
    refuses(make, "negative", warm_start_rounds=-1)
    with pytest.raises(ValueError, match=parts("2 layers ~ 3")):
        make(num_global_layers=3)
