"""FedEM: the invariants in docs/methods, with hand-worked numbers."""

import itertools

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightning_modules.fedem import FedEM
from pfl.core.types import Broadcast
from pfl.training import client_round
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation, context, job
from tests.helpers.toy import ToyData, blobs, mlp

FACTS = {
    FedEM: facts.Facts(
        travels=("net.", "others."),
        stays=("mixture", "participated"),
        # Three components.
        floats=3 * facts.NET,
        variants=[{"damped": True, "components": 2}],
        draws="others.0.head.weight",
        needs_classes=True,
        not_private="pass 'e_step': it computes statistics of the samples without noise",
    ),
}

# Two samples of class 0 and one of class 1, in one batch.
THREE = ToyData([(torch.zeros(3, 1), torch.tensor([0, 0, 1]))], outputs=2)


def sent(module):
    return Broadcast({n: module.state_dict()[n].clone() for n in module.shared_names()})


def train(module, data=THREE, **kept):
    ctx = context(module, data, "64-true")
    return client_round.train(ctx, job(data, broadcast=sent(module), kept=kept))


def test_the_likelihood_does_not_fall():
    """Invariant 3: sum log sum_m pi_m exp(-loss_m), under small full-batch steps."""
    data = blobs((12,), batch_size=12)
    federation, found = Federation(FedEM(mlp(), optimizer=SGD), data), []
    for _ in range(8):
        federation.round()
        found.append(federation.test(0, "train")["loss"])
    assert all(after < before for before, after in itertools.pairwise(found))


@pytest.mark.parametrize(
    "options",
    [
        {"components": 2},
        {"damped": True, "e_steps": 3},
        {"damped": True, "e_steps": 0, "weighting": "uniform"},
    ],
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, count = by_hand.federation(FedEM, **options), options.get("components", 3)
    stems = ["net.", *(f"others.{m}." for m in range(count - 1))]
    nets = [by_hand.initial(by_hand.of(fed.state.shared, stem)) for stem in stems]
    sizes = [1] * 4 if "weighting" in options else by_hand.SIZES
    mixtures, took_part = [torch.full((count,), 1 / count, dtype=torch.float64)] * 4, set()

    def losses(net, x, y, train=False):
        return cross_entropy(by_hand.outputs(net, x, train), y, reduction="none")

    def responsible(mixture, x, y):
        shares = mixture * torch.stack([torch.exp(-losses(net, x, y)) for net in nets], 1)
        return shares / shares.sum(1, keepdim=True)

    for clients in cohorts:
        sent = []
        for c in clients:
            prior, trained = mixtures[c], []
            for m, net in enumerate(nets):

                def loss(w, x, y, m=m, prior=prior):
                    return (responsible(prior, x, y)[:, m] * losses(w, x, y, True)).mean()

                trained.append(by_hand.descended(net, loss, by_hand.batches(fed, c)))
            mixtures[c] = responsible(prior, *by_hand.samples(fed, c)).mean(0)
            sent.append(trained)
        took_part |= {*clients}
        rest = sum(sizes[c] for c in {*range(4)} - {*clients}) if "damped" in options else 0
        weights = [*(sizes[c] for c in clients), rest]
        nets = [by_hand.averaged(states, weights) for states in zip(*sent, nets, strict=True)]
        fed.round(*clients)
        for stem, net in zip(stems, nets, strict=True):
            by_hand.compare(by_hand.of(fed.state.shared, stem), net)
        for c in range(4):
            found = mixtures[c]
            for _ in range(0 if c in took_part else options.get("e_steps", 1)):
                found = responsible(found, *by_hand.samples(fed, c)).mean(0)
            x, _ = by_hand.samples(fed, c, "test")
            answers = torch.stack([by_hand.outputs(net, x).softmax(1) for net in nets], 2)
            expected = (answers @ found).log()
            by_hand.compare(by_hand.predicted(fed, c), expected)
