"""MOON: the invariants in docs/methods."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, linear

from lightning_modules.moon import MOON
from lightning_modules.nets import Projected
from tests.helpers import by_hand, facts
from tests.helpers.toy import mlp

FACTS = {
    MOON: facts.Facts(
        travels=("net.",),
        stays=("previous.", "participated"),
        # 36 entries of the body, 6 * 6 + 6 and 6 * 4 + 4 of the projector, 4 * 3 + 3 of the head.
        floats=36 + 42 + 28 + 15,
        draws="net.backbone.projector.0.weight",
        needs_parts=True,
    ),
}


def make(net, **options):
    """Return the method as the contract and the recorded numbers have it."""
    return MOON(net, **{"out_dim": 4, **options})


def test_without_a_projector_features_are_contrasted():
    module = MOON(mlp(), projector=False)
    assert not isinstance(module.net, Projected)
    assert isinstance(MOON(mlp()).net, Projected)
    assert MOON(mlp()).net.features == 256


@pytest.mark.parametrize("options", [{}, {"mu": 5.0, "tau": 0.1, "weighting": "uniform"}])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(MOON, projector=False, **options), by_hand.initial()
    last, mu, tau = {}, options.get("mu", 1.0), options.get("tau", 0.5)
    for clients in cohorts:
        sent = []
        for c in clients:
            own = last.get(c, w)

            def loss(v, x, y, own=own, common=w):
                z = by_hand.features(v, x, True)
                toward, away = (
                    cosine_similarity(z, by_hand.features(other, x).detach()) / tau
                    for other in (common, own)
                )
                contrast = cross_entropy(torch.stack([toward, away], 1), 0 * y)
                of_labels = cross_entropy(linear(z, v["head.weight"], v["head.bias"]), y)
                return of_labels + mu * contrast

            last[c] = by_hand.descended(w, loss, by_hand.batches(fed, c))
            sent.append(last[c])
        w = by_hand.averaged(
            sent, [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        )
        fed.round(*clients)
        for c in range(4):
            by_hand.compare_tested(fed, c, w)
