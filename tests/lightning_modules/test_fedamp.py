"""FedAMP: the invariants in docs/methods."""

from math import exp

import pytest
import torch

from lightning_modules.fedamp import AMPServer, FedAMP
from pfl.core.types import Broadcast, ClientInfo, Upload
from pfl.training import client_round
from tests.helpers import by_hand
from tests.helpers.federation import SGD, Federation, context, equal, job, own
from tests.helpers.toy import Line, blobs, lines, mlp


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
    """Invariant 3: w = (0, 1), sigma 1, alpha 1/2: xi = exp(-1) / 2. The rest has the same shares.

    Client 2 has sent nothing: nobody's mixture has its network, which still is the initial one.
    """
    server, state = served([0.0], [1.0], alpha=0.5, sigma=1.0)
    share = exp(-1) / 2
    assert server.shares(state, 0).tolist() == pytest.approx([1 - share, share, 0])
    sent = [server.broadcast(state, client, 2).shared for client in range(2)]
    assert [one["w"].item() for one in sent] == pytest.approx([0.183940, 0.816060], abs=1e-6)
    assert sent[0]["mean"].item() == pytest.approx(10 * share)
    assert state.client_report["own_share"] == pytest.approx({0: 1 - share, 1: 1 - share})


def trained(own, mixture, **options):
    """Return a client's network after one step of rate 0.1 without a loss of its own."""
    data = lines(0.0)
    module = FedAMP(Line(), optimizer=SGD, **options)
    sent = job(
        data,
        broadcast=Broadcast({"net.w": torch.tensor([mixture])}),
        kept={"net.w": torch.tensor([own])},
    )
    return client_round.train(context(module, data), sent).kept["net.w"].item()


def test_the_pull_is_lambda_over_alpha():
    """Invariants 3 and 4: (0 - 0.183940) / 0.5 = -0.367879."""
    assert trained(0.0, 0.183940, alpha=0.5) == pytest.approx(0.0367880)
    assert trained(0.0, 0.183940, alpha=0.5, proximity=3.0) == pytest.approx(0.110364)
    assert trained(0.0, 0.183940, alpha=0.5, start="cloud") == pytest.approx(0.183940)


@pytest.mark.parametrize("shares", ["distance", "cosine"])
def test_shares_sum_to_one_and_equal_networks_are_their_mixture(shares):
    """Invariant 2."""
    server, state = served([0.1, 0.2], [0.3, -0.1], [2.0, 1.0], form=shares, sigma=2.0)
    for client in range(3):
        assert server.shares(state, client).sum().item() == pytest.approx(1)
    server, state = served([0.1], [0.1], [0.1], form=shares)
    assert server.broadcast(state, 1, 2).shared["w"].item() == pytest.approx(0.1)


def test_a_narrow_width_shares_nothing():
    """Invariant 5: u_i = w_i, and the server reports it."""
    server, state = served([0.0], [1.0], sigma=1e-4)
    assert server.broadcast(state, 1, 2).shared["w"].item() == 1
    assert state.client_report["own_share"] == {0: 1, 1: 1}


def test_cosines_divide_what_is_left():
    """Invariant 5: sigma 0 is a uniform share; else exp(sigma cos), here of the cosines 1 and 0."""
    sent = [1.0, 0.0], [3.0, 0.0], [0.0, 2.0]
    server, state = served(*sent, form="cosine", sigma=0.0, own_share=0.4)
    assert server.shares(state, 0).tolist() == pytest.approx([0.4, 0.3, 0.3])
    server, state = served(*sent, form="cosine", sigma=2.0)
    most = exp(2) / (exp(2) + 1) * 2 / 3
    assert server.shares(state, 0).tolist() == pytest.approx([1 / 3, most, 2 / 3 - most])
    # One over the number of networks that are known.
    server, state = served(*sent[:2], form="cosine")
    assert server.shares(state, 0).tolist() == [0.5, 0.5, 0]


def test_nobody_is_mixed_before_the_first_upload():
    server, state = served(clients=2)
    assert server.shares(state, 1).tolist() == [0, 1]


def test_a_client_that_sits_out_keeps_its_network_and_its_row():
    """Invariant 6."""
    fed = Federation(FedAMP(mlp(), optimizer=SGD), blobs())
    fed.round()
    kept, rows = own(fed, 2, "net."), {n: v[2].clone() for n, v in fed.state.shared.items()}
    fed.round(0, 1)
    assert equal(own(fed, 2, "net."), kept)
    assert equal({n: v[2] for n, v in fed.state.shared.items()}, rows)


@pytest.mark.parametrize("tested", ["own", "cloud"])
def test_which_network_is_tested(tested):
    fed = Federation(FedAMP(mlp(), optimizer=SGD, tested=tested), blobs())
    fed.round()
    mixture = fed.server.broadcast(fed.state, 0, 2).shared
    expected = own(fed, 0, "net.") if tested == "own" else mixture
    assert equal({f"net.{name}": value for name, value in fed.personal(0).items()}, expected)


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
        assert max(by_hand.disagreement(fed, c, tested[c]) for c in w) < 1e-12
