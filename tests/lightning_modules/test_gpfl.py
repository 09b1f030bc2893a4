"""GPFL: the invariants in docs/methods, with hand-worked numbers."""

import pytest
from torch.nn.functional import cross_entropy, layer_norm, linear, normalize

from lightning_modules.gpfl import GPFL
from tests.helpers import by_hand, facts
from tests.helpers.federation import sgd
from tests.helpers.toy import mlp

FACTS = {
    GPFL: facts.Facts(
        travels=("net.backbone.", "embeddings", "valve."),
        stays=("net.head.",),
        # Embeddings, two maps of the valve, and four vectors of its norms.
        floats=facts.BODY + facts.MEANS + 2 * (6 * 6 + 6) + 4 * 6,
        draws="embeddings",
        needs_classes=True,
        needs_parts=True,
        not_private="such as class counts",
    ),
}


def test_decay_is_of_the_guides_only():
    """mu for embeddings and valve, the optimiser's own for body and head."""
    module = GPFL(mlp(), optimizer=sgd(weight_decay=0.5), guide_decay=0.25)
    first, second = module.configure_optimizers().param_groups
    assert (first["weight_decay"], second["weight_decay"]) == (0.5, 0.25)
    assert len(first["params"]) == len(list(module.net.parameters()))
    assert len(second["params"]) == 1 + len(list(module.valve.parameters()))


@pytest.mark.parametrize("options", [{}, {"magnitude_weight": 0.5, "weighting": "uniform"}])
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed = by_hand.federation(GPFL, guide_decay=0.01, **options)
    w = by_hand.initial({n.removeprefix("net."): v for n, v in fed.state.shared.items()})
    first, weight = by_hand.initial(), options.get("magnitude_weight", 0.01)
    heads = [{n: first[n] for n in ("head.weight", "head.bias")} for _ in range(4)]

    def valve(state, z, condition):
        scale, shift = (
            layer_norm(linear(condition, *of[:2]).relu(), (6,), *of[2:])
            for part in ("scale", "shift")
            for of in [[*by_hand.of(state, f"valve.{part}.").values()]]
        )
        return (z * (scale + 1) + shift).relu()

    def logits(state, z, share):
        z = valve(state, z, share)
        return linear(z, state["head.weight"], state["head.bias"])

    def conditions(c, table):
        # In single precision, whatever that of the run.
        counts = by_hand.samples(fed, c)[1].bincount(minlength=3).float()
        return (counts / by_hand.SIZES[c]).double() @ table, table.mean(0)

    for clients in cohorts:
        sent, table = [], w["embeddings"]
        for c in clients:
            own, common = conditions(c, table)

            def loss(state, x, y, own=own, common=common, table=table):
                z = by_hand.features(state, x, True)
                generic = valve(state, z, common)
                cosines = normalize(generic) @ normalize(state["embeddings"]).T
                apart = (generic - table[y]).square().sum() + 1e-12
                of_labels = cross_entropy(logits(state, z, own), y)
                return of_labels + cross_entropy(cosines, y) + weight * apart.sqrt()

            both = by_hand.descended(w | heads[c], loss, by_hand.batches(fed, c))
            heads[c] = {n: both.pop(n) for n in heads[c]}
            sent.append(both)
        w = by_hand.averaged(
            sent, [1 if "weighting" in options else by_hand.SIZES[c] for c in clients]
        )
        fed.round(*clients)
        for c, head in enumerate(heads):
            own, _ = conditions(c, w["embeddings"])
            z = by_hand.features(w, by_hand.samples(fed, c, "test")[0])
            found, expected = by_hand.predicted(fed, c), logits(w | head, z, own)
            by_hand.compare(found, expected)
