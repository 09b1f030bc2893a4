"""FedAMP: the invariants in docs/methods."""

from math import exp

import pytest
import torch

from lightning_modules.fedamp import AMPServer, FedAMP
from pfl.core.types import ClientInfo, Upload
from tests.helpers import by_hand, facts

FACTS = {
    FedAMP: facts.Facts(
        travels=("net.",),
        stays=("net.",),
        floats=facts.NET,
        variants=[{"shares": "distance", "start": "cloud", "tested": "cloud"}],
        stacks=[{"shares": "cosine", "start": "cloud"}, {"shares": "distance", "start": "cloud"}],
    ),
}


def served(*sent, clients=3, **options):
    """Return a server to which clients 0, 1, ... have sent these networks."""
    server = AMPServer(parameters=("w",), **options)
    infos = [ClientInfo(i, 1, None) for i in range(clients)]
    shared = {"w": torch.zeros(1 if not sent else len(sent[0])), "mean": torch.zeros(1)}
    uploads = [
        Upload(i, 1, {"w": torch.tensor(w), "mean": torch.tensor([10.0 * i])})
        for i, w in enumerate(sent)
    ]
    state = server.init(shared, infos)
    return server, server.aggregate(state, uploads) if sent else state


def test_a_mixture_by_hand():
    """Invariant 2: w = (0, 1), sigma 1, alpha 1/2: xi = exp(-1) / 2. The rest has the same shares.

    Client 2 has sent nothing: nobody's mixture has its network, which still is the initial one.
    """
    server, state = served([0.0], [1.0], form="distance", alpha=0.5, sigma=1.0)
    share = exp(-1) / 2
    assert state.shares[0].tolist() == pytest.approx([1 - share, share, 0])
    sent = [server.broadcast(state, client, 2).shared for client in range(2)]
    assert [one["w"].item() for one in sent] == pytest.approx([0.183940, 0.816060], abs=1e-6)
    assert sent[0]["mean"].item() == pytest.approx(10 * share)
    assert state.client_report["own_share"] == pytest.approx({0: 1 - share, 1: 1 - share})


def test_a_newcomer_starts_at_the_mean_of_what_is_known():
    """(1 + 3) / 2, of three clients of which one has sent nothing; before any upload, w^0."""
    server, state = served([1.0], [3.0])
    message, kept = server.welcome(state, ClientInfo(9, 1, None), [])
    assert (message.shared["w"].item(), kept["w"].item()) == (2, 2)
    server, state = served()
    assert server.welcome(state, ClientInfo(9, 1, None), [])[0].shared["w"].item() == 0


USUAL = {"shares": "distance", "alpha": 0.5, "sigma": 2.0, "proximity": 1.0, "own_share": None}
USUAL |= {"start": "own", "tested": "own"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start": "cloud", "tested": "cloud"},
        {"shares": "cosine", "alpha": 1.0},
        {"shares": "cosine", "own_share": 0.3, "tested": "cloud"},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, o = by_hand.federation(FedAMP, **USUAL | options), USUAL | options
    w, sent = {c: by_hand.initial() for c in range(4)}, []

    def mixture(i):
        others = [j for j in sent if j != i]
        a, b = by_hand.vector(w[i]), {j: by_hand.vector(w[j]) for j in others}
        if o["shares"] == "distance":
            near = {j: float(-(a - b[j]).square().sum() / o["sigma"]) for j in others}
            xi = {j: o["alpha"] / o["sigma"] * exp(value) for j, value in near.items()}
        else:
            e = {j: exp(o["sigma"] * float(a @ b[j] / a.norm() / b[j].norm())) for j in others}
            rest = 1 - (1 / (1 + len(others)) if o["own_share"] is None else o["own_share"])
            xi = {j: rest * value / sum(e.values()) for j, value in e.items()}
        xi[i] = 1 - sum(xi.values())
        return by_hand.averaged([w[j] for j in xi], [*xi.values()])

    def trained(i):
        u = mixture(i)

        def loss(v, x, y):
            apart = (by_hand.vector(v) - by_hand.vector(u)).square().sum()
            return by_hand.cross_entropy_of(v, x, y) + o["proximity"] / (2 * o["alpha"]) * apart

        start = w[i] if o["start"] == "own" else u
        return by_hand.descended(start, loss, by_hand.batches(fed, i))

    for clients in cohorts:
        w |= {c: trained(c) for c in clients}
        sent = sorted({*sent, *clients})
        fed.round(*clients)
        tested = w if o["tested"] == "own" else {i: mixture(i) for i in w}
        for c in w:
            by_hand.compare_tested(fed, c, tested[c])
