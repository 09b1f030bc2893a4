"""CFL: the invariants in docs/methods."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from lightning_modules.cfl import CFL, CFLServer
from lightning_modules.fedavg import FedAvg
from lightning_modules.steps.halves import Splitting
from pfl.core.held_out import HeldOut
from pfl.core.types import ClientInfo, Upload
from tests.helpers import by_hand
from tests.helpers.federation import SGD, Federation, close, equal, fit, follow
from tests.helpers.toy import blobs, contradicting, mlp

EAGER = {"eps1": 9.0, "eps2": 0.0, "min_size": 1, "start_round": 0}
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


def test_clusters_only_split():
    """Invariant 2, over two levels: numbers of clients are not places in a cluster."""
    server, state = served(clients=6)
    first = [(4.0, 0.0), (-4.0, 0.0)] * 3
    state = server.aggregate(state, uploads(*first))
    assert state.cluster == (0, 1, 0, 1, 0, 1)
    second = [(0.0, 4.0), (0.0, 1.0), (0.0, 4.0), (0.0, 1.0), (0.0, -8.0), (0.0, 1.0)]
    after = server.aggregate(state, uploads(*second, state=state))
    assert after.cluster == (0, 1, 0, 1, 2, 1)
    assert [model["w"].tolist() for model in after.models] == [[4, 4], [-4, 1], [4, -8]]
    third = [(4.0, 0.0), (1.0, 0.0), (-4.0, 0.0), (1.0, 0.0), (9.0, 0.0), (1.0, 0.0)]
    last = server.aggregate(after, uploads(*third, state=after))
    assert last.cluster == (0, 1, 3, 1, 2, 1)


def test_a_cluster_with_an_absent_client_does_not_split():
    server, state = served()
    sent = uploads((4.0, 1.0), (-4.0, 0.0), (2.0, 1.0), (-2.0, 0.0))[:3]
    after = server.aggregate(state, sent)
    assert (len(after.models), after.report) == (1, {"clusters": 1})
    assert after.models[0]["w"].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert server.aggregate(after, []).cluster == (0,) * 4


def test_clients_without_data_belong_to_no_cluster():
    """Otherwise none would ever be complete. They are tested with the first model."""
    server = CFLServer(splitting=RULE, parameters=("w",))
    infos = [ClientInfo(i, n, None) for i, n in enumerate((4, 0, 4))]
    state = server.init({"w": torch.zeros(2), "mean": torch.zeros(())}, infos)
    one, _, two = uploads((4.0, 0.0), (0.0, 0.0), (-4.0, 0.0))
    after = server.aggregate(state, [one, two])
    assert after.cluster == (0, -1, 1)
    assert server.broadcast(after, 1, 2).shared["w"].tolist() == [4, 0]


def test_only_directions_count():
    """Invariant 4."""
    for scale in (1.0, 50.0):
        server, state = served(replace(RULE, eps1=99.0))
        changes = [(4.0 * scale, 1.0 * scale), (-4.0, 0.0), (2.0, 1.0), (-2.0, 0.0)]
        assert server.aggregate(state, uploads(*changes)).cluster == (0, 1, 0, 1)


def test_the_numbers_of_clients_do_not_matter():
    """Invariant 5."""
    changes = [(4.0, 1.0), (-4.0, 0.0), (2.0, 1.0), (-2.0, 0.0), (1.0, 1.0)]
    order = [3, 1, 4, 0, 2]
    server, state = served(replace(RULE, eps1=99.0), clients=5)
    one = server.aggregate(state, uploads(*changes)).cluster
    other = server.aggregate(state, uploads(*(changes[i] for i in order))).cluster
    found = [one[i] for i in order]
    assert [*other] in (found, [1 - number for number in found])


def test_contradicting_groups_separate():
    """Invariant 3: once, between the groups; then each cluster is FedAvg on its group."""
    data = contradicting((12, 12, 12, 12), batch_size=12)
    found = {"eps1": 0.03, "eps2": 0.03, "min_size": 2, "start_round": 0}
    run, snapshots = follow(CFL(mlp(num_classes=2), optimizer=SGD, **found), data, 40)
    state = run.server
    assert state.cluster == (0, 0, 1, 1)
    assert len(state.models) == 2
    assert run.history[-1]["test/personal/acc"] == 1.0
    sizes = [len(snapshot.server.models) for snapshot in snapshots]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1


def test_without_a_threshold_it_is_fedavg():
    """Invariant 1. And one cluster is reported."""
    run = fit(CFL(mlp(), optimizer=SGD, eps1=0.0, start_round=0), blobs())
    other = fit(FedAvg(mlp(), optimizer=SGD, weighting="uniform"), blobs())
    assert equal(run.server.shared, other.server.shared)
    assert run.history[-1]["server/clusters"] == 1


def test_a_client_alone_is_local():
    """Invariant 6: after two rounds of splits each of three clients has its own model."""
    federation = Federation(CFL(mlp(), optimizer=SGD, **EAGER))
    federation.round()
    federation.round()
    assert sorted(federation.state.cluster) == [0, 1, 2]
    results = federation.round()
    for client, result in enumerate(results):
        model = federation.state.models[federation.state.cluster[client]]
        assert close(model, result.upload.shared, 0)


def test_a_newcomer_gets_the_mean_over_clients():
    """Models 0 and 4 of one and three clients: 3."""
    server, state = served()
    models = [{"w": torch.full((2,), v), "mean": torch.zeros(())} for v in (0.0, 4.0)]
    state = replace(state, models=models, cluster=(1, 0, 1, 1))
    sent, kept = server.welcome(state, ClientInfo(9, 4, None), [])
    assert sent.shared["w"].tolist() == [3.0, 3.0]
    assert kept == {}


def test_weights_are_uniform_by_default():
    changes = ((2.0, 0.0), (6.0, 0.0))
    for weighting, expected in (("uniform", 4.0), ("samples", 14 / 3)):
        server, state = served(replace(RULE, eps1=0.0), clients=2, weighting=weighting)
        after = server.aggregate(state, uploads(*changes))
        assert after.shared["w"][0].item() == pytest.approx(expected)
    assert CFL(mlp()).server().weighting == "uniform"


def test_clients_that_are_away_count_with_their_last_change():
    """Client 3 last moved by (-2, 0), from the model at 0; the split is that of all four."""
    server, state = served(replace(RULE, start_round=1), stale=True)
    changes = (4.0, 1.0), (-4.0, 0.0), (2.0, 1.0), (-2.0, 0.0)
    state = server.aggregate(state, uploads(*changes))
    assert (len(state.models), sorted(state.last)) == (1, [0, 1, 2, 3])
    after = server.aggregate(state, uploads(*changes, state=state)[:2])
    assert after.cluster == (0, 1, 0, 1)
    # Of the second half only client 1 has sent: 0.5 + 0 and 0 - 4.
    assert [model["w"].tolist() for model in after.models] == [[4.0, 1.5], [-4.0, 0.5]]


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
    """Clients 0 and 1 have the labels of their group, 2 and 3 those of the other."""
    data = contradicting((12, 12, 12, 12, 12, 12), flipped=(2, 3, 5), batch_size=12)
    data.held_out = HeldOut((4, 5))
    found = {"eps1": 0.03, "eps2": 0.03, "min_size": 2, "start_round": 0, "newcomers": "walk"}
    run = fit(CFL(mlp(num_classes=2), optimizer=SGD, **found), data, 40, join_rounds=0)
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
            assert max(by_hand.disagreement(fed, c, models[k]) for c in ids) < 1e-12
        usual = by_hand.averaged(models, [len(ids) for ids in clusters])
        first = (root or models[0]) if "newcomers" in o else usual
        assert by_hand.distance(by_hand.of(fed.welcome()[0].shared, "net."), first) < 1e-12
