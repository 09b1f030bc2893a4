"""FedFomo: the invariants in docs/methods."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.fedfomo import NOBODY, FedFomo
from lightning_modules.local import Local
from pfl.core.types import Totals, Upload
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation, equal, fit
from tests.helpers.toy import Line, blobs, mlp

FACTS = {
    FedFomo: facts.Facts(
        travels=("net.", "others."),
        stays=("net.", "baseline."),
        extra=("who", "rated"),
        # Down: two candidates, once all have uploaded, and their numbers; up: also three ratings.
        floats=lambda info: ((2 * facts.NET if info.round > 1 else 0) + 2, facts.NET + 2 + 3),
        not_private="pass 'mix': it computes statistics of the samples without noise",
    ),
}


def make(net, **options):
    return FedFomo(net, **{"candidates": 2, **options})


def test_a_place_without_a_candidate_counts_nothing():
    module = FedFomo(Line(2.0), candidates=1)
    with torch.no_grad():
        module.baseline.module.w.zero_()
    losses = torch.tensor([4.0, 5.0, 0.0])
    found = module._mixed(Totals({"loss": losses, "count": torch.tensor(4.0)}, {}, 0, 0))
    assert found["rated"].tolist() == [pytest.approx(-0.125, abs=1e-5), 0.0]
    assert "net.w" not in found


def federation(**options):
    return Federation(make(mlp(), optimizer=SGD, explore=0.0, **options), blobs((6, 5, 4, 7)))


def uploads(fed, *pairs):
    found = []
    for client, who, ratings in pairs:
        shared = {n: v[client] + client + 1 for n, v in fed.state.shared.items()}
        extra = {"who": torch.tensor(who), "rated": torch.tensor(ratings)}
        found.append(Upload(client, 5, shared, extra))
    return found


def test_exploration_exchanges_candidates_at_random():
    fed = federation()
    fed.server.explore, fed.server.candidates = 1.0, 1
    everyone = ((c, [NOBODY, NOBODY], [0.0, 0.0, 0.0]) for c in range(4))
    state = fed.server.aggregate(fed.state, uploads(fed, *everyone))
    wanted = state.wanted + torch.tensor([0.0, 0.0, 0.0, 5.0])
    state = replace(state, wanted=wanted)
    drawn = {fed.server.broadcast(state, 0, r).extra["who"][0].item() for r in range(1, 30)}
    assert drawn == {1, 2, 3}
    # After 20 rounds nothing is left of epsilon.
    late = {fed.server.broadcast(state, 0, r).extra["who"][0].item() for r in range(21, 50)}
    assert late == {3}


def test_the_validation_data_decide_and_training_data_do_not():
    """Invariant 1: without validation data each client trains alone."""
    data = blobs((6, 5, 4, 7))
    run = fit(make(mlp(), optimizer=SGD, explore=0.0), data)
    alone = blobs((6, 5, 4, 7))
    alone.splits["val"] = [(x[:0], y[:0]) for x, y in alone.splits["val"]]
    own = fit(make(mlp(), optimizer=SGD), alone).kept
    local = fit(Local(mlp(), optimizer=SGD), alone).kept
    for client, kept in local.items():
        assert equal({n: own[client][n] for n in kept}, kept)
    assert any(not torch.equal(run.kept[c][n], v) for c, k in local.items() for n, v in k.items())


def test_a_newcomer_begins_with_the_mean_and_the_most_wanted():
    fed = federation()
    everyone = ((c, [NOBODY, NOBODY], [0.0, 0.0, 0.0]) for c in range(4))
    state = fed.server.aggregate(fed.state, uploads(fed, *everyone))
    state = replace(state, wanted=state.wanted + torch.tensor([0.0, 3.0, 1.0, 2.0]))
    message, kept = fed.server.welcome(state, replace(fed.infos[0], client=4), fed.infos)
    assert message.extra["who"].tolist() == [1, 3]
    mean = state.shared["net.head.bias"].mean(0)
    assert torch.equal(kept["net.head.bias"], mean)
    assert torch.equal(kept["baseline.module.head.bias"], mean)


USUAL = {"candidates": 2, "explore": 0.0, "fallback": "trained", "weigh_on": "val"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"candidates": 5, "fallback": "baseline"},
        {"candidates": 1, "explore": 1.0},
        {"weigh_on": "train"},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    """Candidates are those that were sent, if they are allowed: ties are drawn."""
    fed, o = by_hand.federation(FedFomo, **USUAL | options), USUAL | options
    trained, start = ({c: by_hand.initial() for c in range(4)} for _ in range(2))
    sent, affinity = set(), torch.eye(4, dtype=torch.float64)

    def candidates(i, number):
        found = [n for n in fed.job(i, number).broadcast.extra["who"].tolist() if n != NOBODY]
        others = sent - {i} if i in sent else set()
        assert {*found} <= others
        assert len({*found}) == len(found) == min(len(others), o["candidates"])
        best = sorted((float(affinity[i, n]) for n in others), reverse=True)[: len(found)]
        assert o["explore"] or [float(affinity[i, n]) for n in found] == pytest.approx(best)
        return found

    def mixed(i, number):
        """Return the model from which training starts, and the ratings."""
        x, y = by_hand.samples(fed, i, o["weigh_on"])
        losses = {n: cross_entropy(by_hand.outputs(trained[n], x), y) for n in range(4)}
        before, rated = cross_entropy(by_hand.outputs(start[i], x), y), {}
        for n in [i, *candidates(i, number)]:
            apart = (by_hand.vector(trained[n]) - by_hand.vector(start[i])).norm()
            rated[n] = float((before - losses[n]) / (apart + 1e-5))
        if max(rated.values()) <= 0:
            return (trained if o["fallback"] == "trained" else start)[i], rated
        shares = [max(rate, 0) for rate in rated.values()]
        return by_hand.averaged([trained[n] for n in rated], shares), rated

    for number, clients in enumerate(cohorts, 1):
        found = {c: mixed(c, number) for c in clients}
        for c, (model, rated) in found.items():
            affinity[c, [*rated]] += torch.tensor([*rated.values()], dtype=torch.float64)
            steps, start[c] = by_hand.batches(fed, c), model
            trained[c] = by_hand.descended(model, by_hand.cross_entropy_of, steps)
        sent |= {*clients}
        fed.round(*clients)
        by_hand.compare(fed.state.wanted, affinity)
        for c in start:
            by_hand.compare_tested(fed, c, mixed(c, number)[0])
