"""pFedHN: the invariants in docs/methods."""

from dataclasses import replace

import pytest
import torch

from lightning_modules.pfedhn import PFedHN
from pfl.core.types import Upload
from tests.helpers.federation import SGD, Federation, equal, fit
from tests.helpers.toy import blobs, mlp

PLAIN = {"server_momentum": 0.0, "server_weight_decay": 0.0}


def make(net, **options):
    return PFedHN(net, **{"steps": 3, "hidden": 7, "hidden_layers": 1, **options})


def federation(**options):
    return Federation(make(mlp(), optimizer=SGD, **options), blobs((9, 6, 4)))


def sent(fed, client):
    return fed.server.broadcast(fed.state, client, 1).shared


def answer(fed, client, change):
    """Return an upload in which every sent entry is less by ``change`` of it."""
    shared = {name: value - change * value for name, value in sent(fed, client).items()}
    return Upload(client, 5, shared)


def test_sizes_and_common_draws():
    """d is 1 + N / 4 rounded down, of the clients with data; the seed decides the draws."""
    fed, other = federation(), federation()
    assert fed.state.hyper["embeddings"].shape == (3, 1)
    assert equal(fed.state.hyper, other.state.hyper)
    assert sent(fed, 0).keys() == fed.state.shared.keys()
    assert not torch.equal(sent(fed, 0)["net.head.bias"], sent(fed, 1)["net.head.bias"])


def test_what_comes_back_as_it_was_sent_changes_nothing():
    """Invariant 1."""
    fed = federation(**PLAIN)
    after = fed.server.aggregate(fed.state, [answer(fed, 0, 0.0), answer(fed, 2, 0.0)])
    assert equal(after.hyper, fed.state.hyper)


def test_the_step_follows_the_derivative_of_the_product():
    """Invariants 2 and 3: that of <H(v; psi), change>, by central differences; one v moves."""
    fed = federation(**PLAIN, server_lr=1.0)
    fed.state = replace(fed.state, hyper={n: v.double() for n, v in fed.state.hyper.items()})
    own, upload = sent(fed, 1), answer(fed, 1, 0.01)
    after = fed.server.aggregate(fed.state, [upload])
    change = {name: value - upload.shared[name] for name, value in own.items()}

    def product(name, place, shift):
        hyper = {n: v.clone() for n, v in fed.state.hyper.items()}
        hyper[name].view(-1)[place] += shift
        made = fed.server.broadcast(replace(fed.state, hyper=hyper), 1, 1).shared
        return sum((made[n] * change[n]).sum() for n in made)

    for name, place in (("body.0.weight", 3), ("outputs.1.weight", 5), ("embeddings", 1)):
        slope = (product(name, place, 1e-6) - product(name, place, -1e-6)) / 2e-6
        moved = fed.state.hyper[name].view(-1)[place] - after.hyper[name].view(-1)[place]
        assert moved.item() == pytest.approx(slope.item(), rel=1e-6)
    before, vectors = fed.state.hyper["embeddings"], after.hyper["embeddings"]
    assert torch.equal(before[[0, 2]], vectors[[0, 2]])
    assert not torch.equal(before[1], vectors[1])


def test_momentum_and_decay_move_the_embeddings_of_others_too():
    """Two rounds of client 0 alone: torch's SGD decays every row."""
    fed = federation(server_lr=0.1, server_momentum=0.5, server_weight_decay=0.01)
    start = fed.state.hyper["embeddings"][2]
    fed.state = fed.server.aggregate(fed.state, [answer(fed, 0, 0.1)])
    first = start - 0.1 * 0.01 * start
    torch.testing.assert_close(fed.state.hyper["embeddings"][2], first)
    fed.state = fed.server.aggregate(fed.state, [answer(fed, 0, 0.1)])
    second = first - 0.1 * (0.5 * 0.01 * start + 0.01 * first)
    torch.testing.assert_close(fed.state.hyper["embeddings"][2], second)


def test_several_clients_make_one_step_of_their_mean():
    fed = federation(**PLAIN)
    uploads = [answer(fed, 0, 0.1), answer(fed, 1, 0.2)]
    both = fed.server.aggregate(fed.state, uploads).hyper
    alone = [fed.server.aggregate(fed.state, [one]).hyper for one in uploads]
    for name, value in both.items():
        torch.testing.assert_close(value, (alone[0][name] + alone[1][name]) / 2)


def test_a_gradient_beyond_50_is_clipped():
    fed = federation(**PLAIN, server_lr=1.0)
    after = fed.server.aggregate(fed.state, [answer(fed, 0, 1e4)])
    steps = [(after.hyper[n] - v).norm() for n, v in fed.state.hyper.items()]
    assert torch.stack(steps).norm().item() == pytest.approx(50, rel=1e-4)


def test_a_newcomer_has_the_mean_embedding_and_moves_it_by_its_introduction():
    fed = federation(**PLAIN, server_lr=0.1)
    info = replace(fed.infos[0], client=3)
    members = fed.infos
    message, kept = fed.server.welcome(fed.state, info, members)
    assert kept == {}
    mean = fed.state.hyper["embeddings"].mean(0)
    alone = replace(fed.state, hyper={**fed.state.hyper, "embeddings": mean[None]})
    assert equal(message.shared, fed.server.broadcast(alone, 0, 1).shared)
    changed = {name: 0.9 * value for name, value in message.shared.items()}
    answered, _ = fed.server.welcome(fed.state, info, members, Upload(3, 5, changed))
    expected = fed.server.aggregate(alone, [Upload(0, 5, changed)]).hyper["embeddings"]
    moved = replace(alone, hyper={**alone.hyper, "embeddings": expected})
    assert equal(answered.shared, fed.server.broadcast(moved, 0, 1).shared)


def test_a_private_head_stays():
    fed = federation(private_head=True)
    assert all(name.startswith("net.backbone.") for name in fed.state.shared)
    run = fit(make(mlp(), optimizer=SGD, private_head=True), blobs())
    assert {*run.kept[0]} == {"net.head.weight", "net.head.bias"}
