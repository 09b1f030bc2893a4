"""pFedSim: the invariants in docs/methods."""

import itertools
from copy import deepcopy
from math import log

import pytest
import torch
from torch import nn

from lightning_modules.fedavg import FedAvg
from lightning_modules.local import Local
from lightning_modules.pfedsim import PFedSim, SimServer
from lightning_modules.steps.rows import similarities
from pfl.core.types import ClientInfo, Upload
from pfl.testing.toy import ToyNet
from tests.helpers import by_hand
from tests.helpers.federation import HEAVY, SGD, Federation, equal, fit, own
from tests.helpers.toy import ToyData, blobs, mlp

BODY, HEAD, CLASSIFIER = "net.backbone.w", "net.head.bias", "net.head.weight"
# Of client 0 and 1: cosines 1 and 0 of the rows; those of client 2 are opposite to client 0's.
HEADS = [[[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [4.0, 0.0]], [[-1.0, 0.0], [0.0, -1.0]]]


def served(clients=3, warmup=0, **options):
    server = SimServer(warmup=warmup, **options)
    shared = {BODY: torch.zeros(1), HEAD: torch.zeros(1), CLASSIFIER: torch.zeros(2, 2)}
    infos = [ClientInfo(i, 2 + 2 * i, None, 0, 10) for i in range(clients)]
    return server, server.init(shared, infos), infos


def sent(client, head=None):
    one = torch.tensor([float(10**client)])
    weight = torch.tensor(HEADS[client] if head is None else head)
    return Upload(client, 2 + 2 * client, {BODY: one, HEAD: -one, CLASSIFIER: weight})


def of_test(fed, client):
    return {f"net.{name}": value for name, value in fed.personal(client).items()}


def test_a_mixture_by_hand():
    """s_01 = (1 + 0) / 2: weights ln 2 and 9.21 of the bodies 10 and 1; 2 is similar to nobody."""
    server, state, _ = served()
    state = server.aggregate(state, [sent(0), sent(1), sent(2)])
    assert state.similarity.tolist() == [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]
    assert state.report == {"similarity": pytest.approx(1 / 6)}
    own_weight, other = -log(1e-4), log(2)
    mixed = (own_weight * 1 + other * 10) / (own_weight + other)
    message = server.broadcast(state, 0, 2).shared
    assert message[BODY].item() == pytest.approx(mixed, rel=1e-6)
    assert (message[HEAD].item(), message[CLASSIFIER].tolist()) == (-1, HEADS[0])
    assert server.broadcast(state, 2, 2).shared[BODY].item() == 100


def test_similarities_are_of_rows_or_of_the_matrix():
    """Flat: the product is 3, the norms are sqrt 5 and 5. Equal ones are capped."""
    heads = torch.tensor(HEADS)
    assert similarities(heads, "flat")[0, 1].item() == pytest.approx(3 / 5**1.5)
    assert similarities(heads[[0, 0]], "rows").tolist() == [[1, 0.9999], [0.9999, 1]]


def test_only_pairs_of_a_common_round_are_compared():
    """Invariants 3 and 5: one client a round leaves the identity; later pairs keep their value."""
    server, state, _ = served()
    for client in range(3):
        state = server.aggregate(state, [sent(client)])
    assert torch.equal(state.similarity, torch.eye(3, dtype=torch.float64))
    state = server.aggregate(state, [sent(0), sent(1)])
    state = server.aggregate(state, [sent(0, HEADS[2]), sent(2)])
    assert state.similarity.tolist() == [[1, 0.5, 0.9999], [0.5, 1, 0], [0.9999, 0, 1]]


def test_equal_bodies_are_their_mixture():
    """Invariant 6."""
    server, state, _ = served()
    state = server.aggregate(state, [sent(0), sent(1)])
    body = torch.full((3, 1), 0.1)
    state.shared[BODY] = body
    assert torch.equal(server.broadcast(state, 1, 2).shared[BODY], body[0])


def test_warm_up_alone_is_fedavg():
    """Invariant 1."""
    run = fit(PFedSim(mlp(), optimizer=SGD, warmup=1), blobs())
    other = fit(FedAvg(mlp(), optimizer=SGD), blobs())
    for client in range(3):
        assert equal({n: v[client] for n, v in run.server.shared.items()}, other.server.shared)
    assert run.history[-1]["test/personal/acc"] == other.history[-1]["test/personal/acc"]


def test_clients_that_are_similar_to_nobody_train_alone():
    """Invariant 2: client i sees feature i alone, so the heads, zero at first, are orthogonal."""
    net = ToyNet(nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU()), nn.Linear(3, 3))
    nn.init.eye_(net.backbone[0].weight)
    nn.init.zeros_(net.head.weight)
    inputs = [torch.eye(3)[i] * torch.linspace(1, 2, 5 + i)[:, None] for i in range(3)]
    data = ToyData([(x, (torch.arange(len(x)) + i) % 3) for i, x in enumerate(inputs)])
    run = fit(PFedSim(deepcopy(net), optimizer=HEAVY, warmup=0), data, 4)
    alone = fit(Local(net, optimizer=HEAVY), data, 4)
    assert torch.equal(run.server.similarity, torch.eye(3, dtype=torch.float64))
    for client in range(3):
        assert run.server.shared[CLASSIFIER][client].any()
        stored = {name: value[client] for name, value in run.server.shared.items()}
        assert equal(stored, alone.kept[client])


def test_the_stored_model_is_tested_after_the_warm_up():
    """In the warm-up the mean; later what was trained last, and else the last mean."""
    fed = Federation(PFedSim(mlp(), optimizer=SGD, warmup=2), blobs(), rounds=4)
    fed.round()
    assert equal(of_test(fed, 0), fed.server.broadcast(fed.state, 0, 2).shared)
    fed.round()
    last = {n: v[2].clone() for n, v in fed.state.shared.items()}
    fed.round(0, 1)
    for client in range(3):
        expected = own(fed, client, "last.module.") if client < 2 else last
        assert equal(of_test(fed, client), expected)


def test_a_newcomer_gets_the_mean_by_samples():
    """(2 * 1 + 4 * 10 + 6 * 100) / 12; in the warm-up the global network."""
    server, state, infos = served()
    state = server.aggregate(state, [sent(0), sent(1), sent(2)])
    message, kept = server.welcome(state, ClientInfo(9, 4, None), infos)
    assert message.shared[BODY].item() == pytest.approx(642 / 12)
    assert kept == {}


USUAL = {"warmup": 0.4, "similarity": "rows", "tested": "stored"}


@pytest.mark.parametrize(
    ("options", "last"),
    [({}, 1), ({"warmup": 0, "similarity": "flat"}, 0), ({"warmup": 2, "tested": "mixed"}, 2)],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
def test_a_federation_by_hand(cohorts, options, last):
    """``last`` is the last round of the warm-up."""
    fed, o = by_hand.federation(PFedSim, **USUAL | options), USUAL | options
    stored, alike = dict.fromkeys(range(4), by_hand.initial()), {}

    def mixture(i):
        if not any(alike.get((i, j), 0) > 0 for j in stored):
            return stored[i]
        a = [-log(1 - (0.9999 if j == i else alike.get((i, j), 0))) for j in stored]
        mean = by_hand.averaged([*stored.values()], a)
        return stored[i] | {n: v for n, v in mean.items() if n.startswith("backbone")}

    for number, clients in enumerate(cohorts, 1):
        new = {
            c: by_hand.descended(mixture(c), by_hand.cross_entropy_of, by_hand.batches(fed, c))
            for c in clients
        }
        if number <= last:
            sizes = [by_hand.SIZES[c] for c in clients]
            stored = dict.fromkeys(stored, by_hand.averaged([*new.values()], sizes))
        else:
            stored |= new
            for i, j in itertools.combinations(clients, 2):
                a, b = new[i]["head.weight"], new[j]["head.weight"]
                if o["similarity"] == "flat":
                    a, b = a.reshape(1, -1), b.reshape(1, -1)
                cosines = torch.cosine_similarity(a, b, eps=1e-15)
                alike[i, j] = alike[j, i] = min(max(float(cosines.mean()), 0), 0.9999)
        fed.round(*clients)
        for c, w in stored.items():
            # A head never depends on other clients (invariant 4).
            sent = by_hand.of(fed.job(c).broadcast.shared, "net.")
            assert by_hand.distance(sent, mixture(c)) < 1e-12
            tested = w if o["tested"] == "stored" else mixture(c)
            assert by_hand.disagreement(fed, c, tested) < 1e-12
