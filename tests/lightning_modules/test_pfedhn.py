"""pFedHN: the invariants in docs/methods."""

import itertools
from dataclasses import replace

import pytest
import torch

from lightning_modules.pfedhn import PFedHN
from pfl.core.types import Upload
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation, equal
from tests.helpers.toy import blobs, mlp

FACTS = {
    PFedHN: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
        variants=[{"order": "sequential", "private_head": True}],
    ),
}

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


USUAL = {"steps": 7, "hidden": 7, "hidden_layers": 2, "embedding": 3, "server_lr": 0.5}
USUAL |= {"order": "joint", "private_head": False, "weighting": "uniform"}


@pytest.mark.parametrize(
    "options",
    [{}, {"order": "sequential", "private_head": True}, {"steps": None, "weighting": "samples"}],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, o = by_hand.federation(PFedHN, **USUAL | options), USUAL | options
    first, psi = by_hand.initial(), by_hand.initial(fed.state.hyper)
    made = [n for n in first if f"net.{n}" in fed.state.shared]
    kept, velocity = dict.fromkeys(range(4), first), dict.fromkeys(psi, 0.0)

    def generated(hyper, i):
        z = hyper["body.0.weight"] @ hyper["embeddings"][i] + hyper["body.0.bias"]
        for k in (2, 4):
            z = hyper[f"body.{k}.weight"] @ z.relu() + hyper[f"body.{k}.bias"]
        rows = (hyper[f"outputs.{k}.weight"] @ z + hyper[f"outputs.{k}.bias"] for k in range(99))
        return {n: row.view(first[n].shape) for n, row in zip(made, rows, strict=False)}

    for clients in cohorts:
        slopes = []
        for c in clients:
            hyper = {n: v.clone().requires_grad_() for n, v in psi.items()}
            theta = generated(hyper, c)
            start = kept[c] | {n: v.detach() for n, v in theta.items()}
            steps = itertools.islice(by_hand.batches(fed, c, o["steps"] or 2), o["steps"])
            kept[c] = by_hand.descended(start, by_hand.cross_entropy_of, steps)
            change = [start[n] - kept[c][n] for n in made]
            found = torch.autograd.grad([*theta.values()], [*hyper.values()], change)
            slopes.append(dict(zip(psi, found, strict=True)))
        if o["order"] == "joint":
            sizes = [by_hand.SIZES[c] if o["weighting"] == "samples" else 1 for c in clients]
            slopes = [by_hand.averaged(slopes, sizes)]
        for slope in slopes:
            factor = min(1, 50 / float(by_hand.vector(slope).norm()))
            for n in psi:
                velocity[n] = 0.9 * velocity[n] + factor * slope[n] + 1e-3 * psi[n]
                psi[n] = psi[n] - o["server_lr"] * velocity[n]
        fed.round(*clients)
        by_hand.compare(fed.state.hyper, psi)
        for c in kept:
            w = {n: (kept[c] | generated(psi, c))[n] for n in first}
            by_hand.compare_tested(fed, c, w)
