"""FedPer: the invariants in docs/methods."""

from functools import partial

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.local import Local
from pfl.core.types import Broadcast
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
from tests.helpers.floats import of_backbone
from tests.helpers.messages import parts, refuses
from tests.helpers.toy import blobs, mlp, normed

floats = of_backbone


def test_no_head_in_the_upload():
    """Invariant 1."""
    data, module = blobs(), FedPer(mlp(), optimizer=SGD)
    upload = client_round.train(context(module, data), job(data)).upload
    assert set(upload.shared) == {"net.backbone.0.weight", "net.backbone.0.bias"}
    assert upload.extra == {}


def test_no_personal_layer_is_fedavg_and_all_are_local():
    """Invariant 2."""
    fedavg = fit(FedAvg(mlp(), optimizer=SGD), blobs())
    none = fit(FedPer(mlp(), optimizer=SGD, personal_layers=0), blobs())
    assert equal(none.server.shared, fedavg.server.shared)
    alone = fit(Local(mlp(), optimizer=SGD), blobs())
    every = fit(FedPer(mlp(), optimizer=SGD, personal_layers=2), blobs())
    assert every.server.shared == {}
    assert all(equal(every.kept[client], alone.kept[client]) for client in range(3))


def test_one_client_is_centralised_sgd():
    """Invariant 3."""
    data = blobs(sizes=(9,), batch_size=99)
    run = fit(FedPer(mlp(), optimizer=HEAVY, epochs=4), data, 1)
    assert close({**run.server.shared, **run.kept[0]}, centralised(data, 4))


def test_bodies_are_the_same_and_heads_differ():
    """Invariant 5."""
    run = fit(FedPer(mlp(), optimizer=SGD), blobs())
    models = []
    for client in range(3):
        module, data = FedPer(mlp(), optimizer=SGD), blobs()
        test = job(data, client, Broadcast(run.server.shared), run.kept[client])
        client_round.test(context(module, data), test)
        models.append({n: v.clone() for n, v in module.state_dict().items()})
    for name in models[0]:
        same = torch.equal(models[0][name], models[1][name])
        assert same is ("backbone" in name)


def test_buffers_of_private_parts_stay():
    """The private layer holds the batch norm: its statistics are kept under either policy."""
    module = FedPer(normed(), optimizer=SGD, personal_layers=2, buffers="average")
    assert "net.backbone.1.running_mean" in module.kept_names()
    assert module.shared_names() == ("net.backbone.0.weight", "net.backbone.0.bias")


def test_a_client_that_never_took_part_can_fit_its_head():
    """Only such a client is changed, and nothing of it survives the test."""
    options = {"optimizer": SGD}
    sampler = UniformSampler(0.4)
    plain, (first,) = follow(FedPer(mlp(), **options), blobs(), 1, sampler=sampler)
    fitted, (other,) = follow(
        FedPer(mlp(), **options, fit_head_before_eval=20), blobs(), 1, sampler=sampler
    )
    assert equal(plain.server.shared, fitted.server.shared)
    assert sorted(fitted.kept) == list(first.trained)
    for row, changed in zip(first.clients, other.clients, strict=True):
        loss, found = row["test/personal/loss"], changed["test/personal/loss"]
        assert (loss == found) is (row["client"] in first.trained)


def test_fitting_the_head_leaves_the_body():
    module, data = FedPer(normed(), optimizer=HEAVY, fit_head_before_eval=3), blobs()
    start = {n: v.clone() for n, v in module.state_dict().items()}
    shared = {name: start[name] for name in module.shared_names()}
    client_round.test(context(module, data), job(data, broadcast=Broadcast(shared)))
    changed = {n for n, v in module.state_dict().items() if not torch.equal(v, start[n])}
    assert changed == {"net.head.weight", "net.head.bias"}


def test_a_single_class_client_collapses_to_that_class():
    data = blobs()
    x, _ = data.splits["train"][2]
    data.splits["train"][2] = (x, torch.ones(len(x), dtype=torch.long))
    run = fit(FedPer(mlp(), optimizer=SGD, epochs=20), data, 3)
    module = FedPer(mlp())
    test = job(data, 2, Broadcast(run.server.shared), run.kept[2])
    client_round.test(context(module, data), test)
    assert (module(x).argmax(-1) == 1).all()


def test_bad_numbers_are_refused():
    make = partial(FedPer, mlp())
    refuses(make, "negative", fit_head_before_eval=-1)
    with pytest.raises(ValueError, match=parts("fit_head_before_eval ~ personal_layers ~ 0")):
        make(personal_layers=0, fit_head_before_eval=2)
    with pytest.raises(ValueError, match=parts("2 layers ~ 3")):
        make(personal_layers=3)
