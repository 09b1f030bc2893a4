"""pFedSim: the invariants in docs/methods."""

import itertools
from math import log

import pytest
import torch

from lightning_modules.pfedsim import PFedSim, SimServer
from pfl.core.types import ClientInfo, Upload
from tests.helpers import by_hand, facts

FACTS = {
    PFedSim: facts.Facts(
        travels=("net.",),
        stays=("last.", "own"),
        floats=facts.NET,
        variants=[{"warmup": 0, "similarity": "flat"}, {"warmup": 0, "tested": "mixed"}],
        needs_parts=True,
    ),
}

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
@by_hand.up_to_rounding
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
            # A head never depends on other clients (invariant 3).
            sent = by_hand.of(fed.job(c).broadcast.shared, "net.")
            by_hand.compare(sent, mixture(c))
            tested = w if o["tested"] == "stored" else mixture(c)
            by_hand.compare_tested(fed, c, tested)
