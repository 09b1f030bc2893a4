"""FedPer: the invariants in docs/methods."""

import torch

from lightning_modules.fedper import FedPer
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
from tests.helpers.toy import blobs, mlp, normed


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
