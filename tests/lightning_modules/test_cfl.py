"""CFL: the invariants in docs/methods."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from lightning_modules.cfl import CFL, CFLServer
from lightning_modules.steps.halves import Splitting
from pfl.core.types import ClientInfo, Upload
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, fit
from tests.helpers.toy import contradicting, mlp

FACTS = {
    CFL: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
        fewer={"start_round": 0, "min_size": 1, "eps1": 9.0, "eps2": 0.0},
        variants=[{"eps1": 9.0, "eps2": 0.0, "min_size": 1, "start_round": 0, "stale": True}],
    ),
}

RULE = Splitting(eps1=1.01, eps2=2.0, min_size=1, start_round=0, linkage="complete", gamma_max=0.0)


def served(rule=RULE, clients=4, weighting="uniform", **options):
    server = CFLServer(weighting, splitting=rule, parameters=("w",), **options)
    infos = [ClientInfo(i, 4, None) for i in range(clients)]
    return server, server.init({"w": torch.zeros(2), "mean": torch.zeros(())}, infos)


def uploads(*changes, state=None):
    """Return uploads of clients that moved so from the model of their cluster."""
    made = []
    for client, change in enumerate(changes):
        start = torch.zeros(2) if state is None else state.models[state.cluster[client]]["w"]
        shared = {"w": start + torch.tensor(change), "mean": torch.tensor(float(client))}
        made.append(Upload(client, 1 + client, shared))
    return made


def test_a_split_by_hand():
    """The mean (0, 0.5) is short, and the changes are long.

    The cut lies between those to the right and to the left; each half takes its own mean.
    """
    server, state = served()
    after = server.aggregate(state, uploads((4.0, 1.0), (-4.0, 0.0), (2.0, 1.0), (-2.0, 0.0)))
    assert after.cluster == (0, 1, 0, 1)
    assert [model["w"].tolist() for model in after.models] == [[3.0, 1.0], [-3.0, 0.0]]
    assert [model["mean"].item() for model in after.models] == [1.0, 2.0]
    longest = pytest.approx(17**0.5)
    assert after.report == {"clusters": 2, "mean_norm_0": 0.5, "max_norm_0": longest}
    assert after.client_report["cluster"] == {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}
    assert [server.broadcast(after, c, 2).shared["w"][0].item() for c in range(4)] == [3, -3, 3, -3]


def test_clients_without_data_belong_to_no_cluster():
    """Otherwise none would ever be complete. They are tested with the first model."""
    server = CFLServer(splitting=RULE, parameters=("w",))
    infos = [ClientInfo(i, n, None) for i, n in enumerate((4, 0, 4))]
    state = server.init({"w": torch.zeros(2), "mean": torch.zeros(())}, infos)
    one, _, two = uploads((4.0, 0.0), (0.0, 0.0), (-4.0, 0.0))
    after = server.aggregate(state, [one, two])
    assert after.cluster == (0, -1, 1)
    assert server.broadcast(after, 1, 2).shared["w"].tolist() == [4, 0]


def test_a_newcomer_gets_the_mean_over_clients():
    """Models 0 and 4 of one and three clients: 3."""
    server, state = served()
    models = [{"w": torch.full((2,), v), "mean": torch.zeros(())} for v in (0.0, 4.0)]
    state = replace(state, models=models, cluster=(1, 0, 1, 1))
    sent, kept = server.welcome(state, ClientInfo(9, 4, None), [])
    assert sent.shared["w"].tolist() == [3.0, 3.0]
    assert kept == {}


def test_a_newcomer_walks_down_the_tree():
    """Two splits: by the first coordinate, then cluster 0 by the second."""
    server, state = served(replace(RULE, eps1=9.0), newcomers="walk")
    first = server.aggregate(state, uploads((4.0, 1.0), (-4.0, 0.0), (4.0, -1.0), (-4.0, 0.0)))
    moved = uploads((0.0, 3.0), (1.0, 0.0), (0.0, -3.0), (1.0, 0.0), state=first)
    second = server.aggregate(first, moved)
    assert second.cluster == (0, 1, 2, 1)
    for state, change, expected in (
        (first, (9.0, 1.0), 0),
        (first, (-9.0, 1.0), 1),
        (second, (5.0, 1.0), 0),
        (second, (5.0, -1.0), 2),
        (second, (-5.0, 1.0), 1),
    ):
        root, _ = server.welcome(state, ClientInfo(9, 4, None), [])
        assert not root.shared["w"].any()
        sent = Upload(9, 4, {"w": torch.tensor(change)})
        found, kept = server.welcome(state, ClientInfo(9, 4, None), [], sent)
        assert found.shared is state.models[expected]
        assert kept == {}


def test_a_newcomer_trains_the_model_before_the_first_split_to_find_its_cluster():
    from pfl.extras.newcomers.newcomers import Newcomers

    """Clients 0 and 1 have the labels of their group, 2 and 3 those of the other."""
    data = contradicting((12, 12, 12, 12, 12, 12), flipped=(2, 3, 5), batch_size=12)
    data.apart = {"unseen": (4, 5)}
    found = {"eps1": 0.03, "eps2": 0.03, "min_size": 2, "start_round": 0, "newcomers": "walk"}
    method = CFL(mlp(num_classes=2), optimizer=SGD, **found)
    run = fit(method, data, 40, evaluations=[Newcomers(join_rounds=0)])
    assert run.server.cluster == (0, 0, 1, 1)
    assert run.history[-1]["test/unseen/acc"] == 1.0


def cut(alike, linkage):
    """Return two sorted groups of rows, merged one pair after another."""
    groups, join = [[i] for i in range(len(alike))], {"complete": min, "single": max}[linkage]

    def near(pair):
        one, other = (groups[place] for place in pair)
        return join(alike[i][j] for i in one for j in other)

    while len(groups) > 2:
        a, b = max(itertools.combinations(range(len(groups)), 2), key=near)
        groups[a] += groups.pop(b)
    return sorted(sorted(group) for group in groups)


USUAL = {"eps1": 1.0, "eps2": 0.2, "min_size": 2, "start_round": 0, "gamma_max": 0.0}
USUAL |= {"weighting": "uniform", "linkage": "complete", "stale": False}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"linkage": "single", "weighting": "samples"},
        {"gamma_max": 0.6},
        {"gamma_max": 0.9},
        {"start_round": 1, "min_size": 1, "eps1": 9.0, "newcomers": "walk"},
        {"stale": True, "min_size": 1, "eps1": 9.0, "newcomers": "root"},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, o = by_hand.federation(CFL, **USUAL | options), USUAL | options
    models, clusters, dw, root = [by_hand.initial()], [[0, 1, 2, 3]], {}, None

    def change(new, old):
        return torch.cat([(new[n] - old[n]).flatten() for n in new if "running" not in n])

    for number, clients in enumerate(cohorts, 1):
        new, dw = {}, dw if o["stale"] else {}
        for c in clients:
            model = models[next(k for k, ids in enumerate(clusters) if c in ids)]
            new[c] = by_hand.descended(model, by_hand.cross_entropy_of, by_hand.batches(fed, c))
            dw[c] = change(new[c], model)
        for k, ids in enumerate([*clusters]):
            if not dw.keys() >= {*ids} or len(ids) <= o["min_size"] or number <= o["start_round"]:
                continue
            rows = torch.stack([dw[c] for c in ids])
            alike = [[float(a @ b / (a.norm() * b.norm() + 1e-12)) for a in rows] for b in rows]
            one, two = cut(alike, o["linkage"])
            across = max(alike[i][j] for i in one for j in two)
            apart = o["gamma_max"] == 0 or math.sqrt((1 - across) / 2) > o["gamma_max"]
            long = max(row.norm() for row in rows) > o["eps2"]
            if apart and long and rows.mean(0).norm() < o["eps1"]:
                root = root or models[0]
                clusters[k] = [ids[i] for i in one]
                clusters.append([ids[i] for i in two])
                models.append(models[k])
        for k, ids in enumerate(clusters):
            if here := [c for c in ids if c in new]:
                sizes = [1 if o["weighting"] == "uniform" else by_hand.SIZES[c] for c in here]
                models[k] = by_hand.averaged([new[c] for c in here], sizes)
        fed.round(*clients)
        for k, ids in enumerate(clusters):
            for c in ids:
                by_hand.compare_tested(fed, c, models[k])
        usual = by_hand.averaged(models, [len(ids) for ids in clusters])
        first = (root or models[0]) if "newcomers" in o else usual
        sent, _ = fed.server.welcome(fed.state, fed.infos[0], fed.infos)
        by_hand.compare(by_hand.of(sent.shared, "net."), first)
