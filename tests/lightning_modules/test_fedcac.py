"""FedCAC: the invariants in docs/methods."""

import itertools

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedcac import CACServer, FedCAC
from lightning_modules.steps.critical import collaborators, critical
from pfl.core.types import ClientInfo, Upload
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, equal, fit
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedCAC: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
    ),
}

# Overlaps 0.5, 0 and 0.5: mean 1/3, largest 0.5.
PLACES = [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]]


def masks(places):
    return [{"w": torch.tensor(one) > 0} for one in places]


def served(start=(0.0, 0.0, 0.0, 0.0), **options):
    server = CACServer(parameters=("w",), **options)
    infos = [ClientInfo(i, 1 + i, None) for i in range(3)]
    shared = {"w": torch.tensor(start), "mean": torch.zeros(())}
    return server, server.init(shared, infos)


def sent(client, *w):
    return Upload(client, 1 + client, {"w": torch.tensor(w), "mean": torch.tensor(float(client))})


def test_a_round_by_hand():
    """Places as above, at t = 1 and beta = 10: 0 and 1 collaborate, 1 and 2 too, 0 and 2 do not.

    The weights of the mean are 1/6, 2/6 and 3/6: (6 + 2 * 3) / 6 = 2 and so on.
    """
    server, state = served(beta=10)
    uploads = [
        sent(0, 6.0, 6.0, 0.0, 0.0),
        sent(1, 3.0, 0.0, 3.0, 0.0),
        sent(2, 0.0, 0.0, 4.0, 4.0),
    ]
    after = server.aggregate(state, uploads)
    assert after.mean["w"].tolist() == [2, 1, 3, 2]
    assert after.mean["mean"].item() == pytest.approx(4 / 3)
    assert [server.broadcast(after, c, 2).shared["w"].tolist() for c in range(3)] == [
        [4.5, 3, 3, 2],
        [3, 1, pytest.approx(7 / 3), 2],
        [2, 1, 3.5, 2],
    ]
    assert after.report == {"critical": 0.5}
    assert after.client_report["partners"] == {0: 1, 1: 2, 2: 1}
    assert server.welcome(after, ClientInfo(9, 1, None), [])[0].shared == after.mean


@pytest.mark.parametrize(
    ("after", "tau", "expected"),
    [
        ([1.0, -3.0, 2.0, 0.5], 0.25, [0, 1, 0, 0]),
        ([1.0, -3.0, 2.0, 0.5], 0.2, [0, 0, 0, 0]),
        ([1.0, 1.0, 2.0, 0.5], 0.5, [1, 1, 1, 0]),
        # The threshold would be 0: the smallest score above 1e-20 takes its place.
        ([0.0, 3.0, 0.0, 1e-6], 0.75, [0, 1, 0, 1]),
        ([0.0, 0.0, 0.0, 0.0], 0.5, [1, 1, 1, 1]),
    ],
)
def test_critical_parameters(after, tau, expected):
    assert critical(torch.zeros(4), torch.tensor(after), tau).int().tolist() == expected


def test_a_client_without_critical_parameters_overlaps_with_none():
    """Its row is 0; the others overlap by 0.5 with it and by 0 or 0.5 among themselves."""
    found = collaborators(masks([[0, 0, 0, 0], *PLACES[:2]]), 1.0)
    assert found.int().tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]


def test_nothing_critical_is_fedavg():
    """Invariant 1."""
    run = fit(FedCAC(mlp(), optimizer=SGD, tau=0.0), blobs())
    other = fit(FedAvg(mlp(), optimizer=SGD), blobs())
    assert equal(run.server.mean, other.server.shared)
    assert run.history[-1]["test/personal/acc"] == other.history[-1]["test/personal/acc"]


@pytest.mark.parametrize(
    "options", [{}, {"tau": 0.1, "beta": 2, "weighting": "uniform"}, {"buffers": "local"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, mean = by_hand.federation(FedCAC, **options), by_hand.initial()
    tau, beta = options.get("tau", 0.5), options.get("beta", 100)
    names = [n for n in mean if "running" not in n]
    local = [n for n in mean if n not in names and "buffers" in options]
    own, places = [by_hand.initial() for _ in range(4)], [dict.fromkeys(names, 0) for _ in range(4)]
    statistics = [{n: mean[n] for n in local} for _ in range(4)]

    def mixed(c):
        mix = {n: m * own[c][n] + (1 - m) * mean[n] for n, m in places[c].items()}
        return {**mean, **mix, **statistics[c]}

    def mask(before, after):
        scores = ((after - before) * after).abs()
        count = int(tau * scores.numel())
        return (
            scores >= scores.flatten().sort(descending=True).values[count - 1]
            if count
            else scores < 0
        )

    for number, clients in enumerate(cohorts, 1):
        before, new = {c: mixed(c) for c in clients}, {}
        for c, start in before.items():
            new[c] = by_hand.descended(start, by_hand.cross_entropy_of, by_hand.batches(fed, c))
            places[c] = {n: mask(start[n], new[c][n]).double() for n in names}
            statistics[c] = {n: new[c][n] for n in local}
        sizes = [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        mean = by_hand.averaged([*new.values()], sizes)
        flat = {c: torch.cat([places[c][n].flatten() for n in names]) for c in clients}
        overlaps = {
            (i, j): 1 - (flat[i] - flat[j]).abs().sum() / (2 * flat[i].sum())
            for i, j in itertools.permutations(clients, 2)
        }
        usual, most = sum(overlaps.values()) / len(overlaps), max(overlaps.values())
        least = usual + number / beta * (most - usual)
        for i in clients:
            partners = [new[j] for j in clients if j == i or overlaps[i, j] >= least]
            own[i] = by_hand.averaged(partners, [1] * len(partners))
        fed.round(*clients)
        for c in range(4):
            by_hand.compare_tested(fed, c, mixed(c))
