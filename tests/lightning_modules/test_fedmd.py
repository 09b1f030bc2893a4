"""FedMD: the invariants in docs/methods."""

import pytest
import torch

from lightning_modules.fedmd import FedMD, FedMDServer
from lightning_modules.local import Local
from lightning_modules.nets import PerClient, SplitNet
from pfl.core.seeds import generator
from pfl.testing import check_method
from pfl.testing.toy import ToySplit
from tests.helpers import by_hand, facts
from tests.helpers.extras import needs
from tests.helpers.federation import SGD, Federation, fit
from tests.helpers.toy import blobs, mlp

FACTS = {
    FedMD: facts.Facts(
        travels=("consensus",),
        stays=("net.", "started"),
        # Logits of twelve public samples.
        floats=12 * 3,
        variants=[{"align_samples": 3}],
        needs_parts=True,
        not_private="phase 'public': it trains on public data",
    ),
}

SIZES = (6, 5, 4)


def make(net, **options):
    few = {"public_samples": 12, "public_epochs": 1, "private_epochs": 1, "epochs": 1}
    return FedMD(net, **{**few, **options})


def federation(**options):
    return Federation(make(mlp(), optimizer=SGD, public_samples=6, **options), blobs(SIZES))


def test_without_a_digest_it_is_local():
    """Invariant 1, after the first trainings."""
    options = {"public_epochs": 0, "private_epochs": 1, "digest_epochs": 0}
    # The phases have other names, and so other orders of samples: full batches have none.
    one = fit(make(mlp(), optimizer=SGD, **options), blobs(SIZES, batch_size=9))
    alone = fit(Local(mlp(), optimizer=SGD), blobs(SIZES, batch_size=9))
    for client, kept in alone.kept.items():
        for name, value in kept.items():
            torch.testing.assert_close(one.kept[client][name], value)


def test_networks_may_differ():
    deep = SplitNet(torch.nn.Linear(5, 9), torch.nn.Linear(9, 3))
    run = fit(make(PerClient([mlp(), deep]), optimizer=SGD), blobs(SIZES), 2)
    assert run.kept[0]["net.head.weight"].shape == (3, 6)
    assert run.kept[1]["net.head.weight"].shape == (3, 9)


def test_samples_are_drawn_anew_in_proportion_to_classes():
    """Invariant 4: of 6, 3 and 3 samples of three classes, a third each."""
    server = FedMDServer(align_samples=4)
    y = torch.tensor([0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1])
    server.public = ToySplit(torch.zeros(12, 1), y)
    drawn = [server.drawn(number) for number in range(1, 40)]
    assert all(y[one].bincount().tolist() == [2, 1, 1] for one in drawn)
    assert torch.cat(drawn).unique().tolist() == [*range(12)]
    assert torch.equal(server.drawn(3), drawn[2])


def test_a_round_without_uploads_leaves_the_consensus_with_its_samples():
    fed = federation(align_samples=3)
    fed.round()
    state = fed.server.aggregate(fed.state, [])
    sent = fed.server.broadcast(state, 0, 3)
    assert torch.equal(sent.extra["known"], fed.server.drawn(1))
    assert torch.equal(sent.extra["wanted"], fed.server.drawn(3))


def test_a_method_that_draws_samples_keeps_all_promises():
    """The consensus comes down with two lists of samples, of 64 bits each."""
    check_method(
        FedMD,
        lambda net, **options: make(net, **{"public_samples": 9, "align_samples": 5, **options}),
        lambda module, info: (5 * 3 + 2 * (5 + 5), 5 * 3),
    )


@needs("sites")
def test_sites_digest_on_the_samples_of_the_server():
    alone, away = (
        fit(make(mlp(), align_samples=3, optimizer=SGD), blobs(SIZES), engine=engine)
        for engine in ("sequential", "loopback")
    )
    assert away.fingerprint == alone.fingerprint


@pytest.mark.parametrize(
    ("digest_loss", "align_samples"), [("mae", None), ("mse", None), ("kl", None), ("mae", 6)]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, digest_loss, align_samples):
    first = {"public_epochs": 1, "private_epochs": 3, "public_samples": 10, "digest_batch_size": 4}
    first |= {"digest_loss": digest_loss, "align_samples": align_samples}
    fed = by_hand.federation(FedMD, digest_epochs=2, **first)
    models, g, seen = dict.fromkeys(range(4), by_hand.initial()), None, set()
    public, labels = by_hand.samples(fed, 0)

    def drawn(number):
        if align_samples is None:
            return [*range(10)]
        order = torch.randperm(10, generator=generator(fed.server.seed, "align", number)).tolist()
        order.sort(key=lambda sample: int(labels[sample]))
        return sorted(order[k * 10 // align_samples] for k in range(align_samples))

    def imitation(w, rows):
        logits = by_hand.outputs(w, public[some][rows], True)
        if digest_loss == "kl":
            p = g[rows].softmax(1)
            return (p * (p.log() - logits.log_softmax(1))).sum(1).mean()
        apart = logits - g[rows]
        return (apart.abs() if digest_loss == "mae" else apart**2).mean()

    some = drawn(0)
    for number, clients in enumerate(cohorts, 1):
        for c in clients:
            w, known = models[c], by_hand.orders(fed, c, len(some), 2, "digest")
            if c not in seen:
                steps = [(public[o], labels[o]) for o in by_hand.orders(fed, c, 10, 1, "public")]
                w = by_hand.descended(w, by_hand.cross_entropy_of, steps)
                steps = by_hand.batches(fed, c, 3, "private")
                w = by_hand.descended(w, by_hand.cross_entropy_of, steps)
            if g is not None:
                w = by_hand.descended(w, imitation, ([rows] for rows in known))
                steps = by_hand.batches(fed, c, phase="revisit")
                w = by_hand.descended(w, by_hand.cross_entropy_of, steps)
            models[c] = w
        seen |= {*clients}
        some = drawn(number)
        g = sum(by_hand.outputs(models[c], public[some]) for c in clients) / len(clients)
        fed.round(*clients)
        by_hand.compare(fed.state.shared, {"consensus": g})
        for c, w in models.items():
            by_hand.compare_tested(fed, c, w)
