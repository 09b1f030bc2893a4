"""pFedFDA: the invariants in docs/methods; the Gaussians are tested in test_gaussians."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from lightning_modules.pfedfda import PFedFDA
from lightning_modules.steps.gaussians import (
    Gaussians,
    blend,
    choose_coefficients,
    discriminant,
    estimate,
    unpack,
)
from tests.helpers import by_hand, facts
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import mlp

FACTS = {
    PFedFDA: facts.Facts(
        travels=("net.backbone.", "means", "covariance"),
        stays=("coefficients",),
        # Means and half a covariance.
        floats=facts.BODY + facts.MEANS + 21,
        variants=[{"stats": "fresh_pass"}],
        stacks=[{"stats": "fresh_pass"}],
        needs_classes=True,
        needs_parts=True,
        not_private="such as class counts",
    ),
}


def fda(net=None, **options):
    return PFedFDA(mlp() if net is None else net, optimizer=sgd(), **options)


def test_the_global_model_takes_classes_as_equally_likely():
    federation = Federation(fda())
    federation.round()
    module = federation.module
    module.load_global(federation.server.broadcast(federation.state, 0, 1))
    assert module.prior.tolist() == pytest.approx([1 / 3] * 3)


def test_without_training_running_statistics_leave_the_gaussians():
    federation = Federation(fda(epochs=0))
    before = federation.state.shared
    (result,) = federation.round(0)
    assert equal(result.upload.shared, before)


@pytest.mark.parametrize("options", [{}, {"stats": "fresh_pass", "weighting": "uniform"}])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(PFedFDA, eps=1e-2, **options), by_hand.initial()
    common = Gaussians(fed.state.shared["means"], unpack(fed.state.shared["covariance"]))
    w = {n: v for n, v in w.items() if n.startswith("backbone.")}

    def prior(c):
        counts = by_hand.samples(fed, c)[1].bincount(minlength=3).double()
        return (counts / counts.sum() + 1e-2) / 1.03

    def fitted(c, z, y):
        share = choose_coefficients(z, y, common, prior(c), 1e-2)
        return blend(estimate(z, y, common), common, share)

    for clients in cohorts:
        bodies, gaussians = [], []
        for c in clients:
            (x, y), rows = by_hand.samples(fed, c), []
            head = discriminant(common, prior(c), 1e-2)

            def loss(v, x, y, head=head, rows=rows):
                z = by_hand.features(v, x, True)
                rows.append((z.detach(), y))
                return cross_entropy(linear(z, *head), y)

            bodies.append(by_hand.descended(w, loss, by_hand.batches(fed, c)))
            z, labels = (torch.cat(part) for part in zip(*rows, strict=True))
            if "stats" in options:
                z, labels = by_hand.features(bodies[-1], x), y
            means, covariance = fitted(c, z.detach(), labels)
            gaussians.append({"means": means, "covariance": covariance})
        sizes = [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        w, common = by_hand.averaged(bodies, sizes), by_hand.averaged(gaussians, sizes)
        common = Gaussians(**common)
        fed.round(*clients)
        for c in range(4):
            x, y = by_hand.samples(fed, c)
            classifier = discriminant(fitted(c, by_hand.features(w, x).detach(), y), prior(c), 1e-2)
            z = by_hand.features(w, by_hand.samples(fed, c, "test")[0])
            found, expected = by_hand.predicted(fed, c), linear(z, *classifier)
            by_hand.compare(found, expected)
