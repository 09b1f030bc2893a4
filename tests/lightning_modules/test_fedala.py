"""FedALA: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch

from lightning_modules.fedala import FedALA
from pfl.core.seeds import generator
from pfl.training.batching import Length
from tests.helpers import by_hand, facts
from tests.helpers.federation import Federation, sgd
from tests.helpers.federation import steps as steps_of_phase
from tests.helpers.toy import mlp

FACTS = {
    FedALA: facts.Facts(
        travels=("net.",),
        stays=("own.", "mix.", "visits"),
        floats=facts.NET,
        fewer={"window": 2, "max_init_epochs": 3},
        variants=[{"top": "all", "epochs": 2, "threshold": 0.5, "window": 2}],
        not_private="not vectorizable",
    ),
}


def ala(net=None, **options):
    return FedALA(mlp() if net is None else net, optimizer=sgd(), **options)


def test_mixing_sees_its_last_batch_though_training_drops_it():
    """Client 0 has nine samples: seven for mixing in batches of 4 and 3; 4 and 4 for training."""
    federation = Federation(ala(mix_percent=80))
    federation.data.drop_last = True
    learn, _, train, _ = federation.context.plan
    for part, sizes in ((learn, [4, 3]), (train, [4, 4])):
        taken = steps_of_phase(federation.context, federation.job(0), part, Length(1), 9)
        assert [len(step.positions) for step in taken] == sizes


def steps(federation, client):
    """Count the steps of learning W and of training; client 0 has three batches an epoch."""
    return federation.train(client).steps


def test_lengths_of_the_learning():
    """Never, then until the losses settle (at least 11 epochs), then one epoch.

    80 % of nine samples are seven, two batches; training takes three.
    """
    federation = Federation(ala(threshold=100.0))
    assert steps(federation, 0) == 3
    federation.round(0)
    assert steps(federation, 0) == 11 * 2 + 3
    federation.round(0)
    assert steps(federation, 0) == 2 + 3
    capped = Federation(ala(threshold=0.0, max_init_epochs=13))
    capped.round()
    assert steps(capped, 0) == 13 * 2 + 3


def test_when_losses_have_settled():
    """More than 10 of them, and the last 10 with a standard deviation (over n) below 0.1."""
    module = ala()
    flat = [1.0] * 10
    assert not module._settled(flat)
    assert module._settled([9.0, *flat])
    assert not module._settled([*flat, 1.4])  # mean 1.04, deviation 0.12
    assert module._settled([*flat, 1.3])  # deviation 0.09


@pytest.mark.parametrize(
    "options", [{"mix_lr": 20.0}, {"mix_lr": 3.0, "top": "all", "weighting": "uniform"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(FedALA, max_init_epochs=3, **options), by_hand.initial()
    own, visits = [by_hand.initial() for _ in range(4)], [0] * 4
    top = [n for n in by_hand.trained(w) if "top" in options or n.startswith("head.")]
    mixes = [{n: torch.ones_like(w[n]) for n in top} for _ in range(4)]

    def mixture(c, mix):
        return w | {n: own[c][n] + (w[n] - own[c][n]) * share for n, share in mix.items()}

    def learnt(c, ahead):
        """Return the shares after the steps on four fifths of the samples."""
        mix, (x, y) = mixes[c], by_hand.samples(fed, c)
        rng = generator(fed.job(c, fed.number + ahead).seed, "share", "mix")
        some = torch.randperm(len(y), generator=rng)[: max(4, len(y) * 4 // 5)]
        epochs = (0, 3, 1)[min(visits[c], 2)]
        for rows in by_hand.orders(fed, c, len(some), epochs, "mix", ahead=ahead):
            if len(rows) == 1:  # which batch norm cannot take
                continue
            mix = {n: share.requires_grad_() for n, share in mix.items()}
            still = {n: v if n in top else v.clone() for n, v in mixture(c, mix).items()}
            loss = by_hand.cross_entropy_of(still, x[some[rows]], y[some[rows]])
            slopes = torch.autograd.grad(loss, [*mix.values()])
            pairs = zip(mix.items(), slopes, strict=True)
            mix = {n: (v - options["mix_lr"] * s).clamp(0, 1).detach() for (n, v), s in pairs}
        return mix

    for clients in cohorts:
        sent = []
        for c in clients:
            mixes[c] = learnt(c, 1)
            start = mixture(c, mixes[c]) if visits[c] else w
            own[c] = by_hand.descended(start, by_hand.cross_entropy_of, by_hand.batches(fed, c))
            visits[c] += 1
            sent.append(own[c])
        sizes = [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        w = by_hand.averaged(sent, sizes)
        fed.round(*clients)
        for c in range(4):
            tested = mixture(c, learnt(c, 0)) if visits[c] else w
            by_hand.compare_tested(fed, c, tested)
