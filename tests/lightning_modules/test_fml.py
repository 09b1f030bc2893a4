"""FML: the invariants in docs/methods."""

import pytest
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_modules.fml import FML
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, Federation, equal, own
from tests.helpers.toy import blobs, mlp

FACTS = {
    FML: facts.Facts(
        travels=("net.",),
        stays=("personal.",),
        floats=facts.NET,
        variants=[{"detach": False, "kl": "element"}],
        stacks=[{"detach": False, "kl": "element"}],
        needs_classes=True,
    ),
}


def test_a_private_network_of_another_kind():
    """It stays, is tested, and is no part of what travels; newcomers have its initial values."""
    private = nn.Linear(5, 3)
    fed = Federation(FML(mlp(), private=private, optimizer=SGD), blobs())
    assert not fed.module.has_global_model()
    assert all(name.startswith("net.") for name in fed.state.shared)
    fed.round(0, 1)
    kept = own(fed, 0, "personal.")
    fed.round(1)
    assert equal(own(fed, 0, "personal."), kept)
    assert fed.server.inherits is None


@pytest.mark.parametrize(
    "options", [{}, {"detach": False, "kl": "element", "weighting": "samples"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed = by_hand.federation(FML, alpha=0.3, beta=0.8, **options)
    w, personal = by_hand.initial(), [by_hand.initial() for _ in by_hand.SIZES]

    def divergence(teacher, logits):
        p, q = (teacher.detach() if not options else teacher).log_softmax(1), logits.log_softmax(1)
        return (p.exp() * (p - q)).sum(1).mean() / (3 if options else 1)

    def loss(both, x, y):
        v, w = (by_hand.outputs(by_hand.of(both, stem), x, True) for stem in ("v.", "w."))
        of_v = 0.3 * cross_entropy(v, y) + 0.7 * divergence(w, v)
        return of_v + 0.8 * cross_entropy(w, y) + 0.2 * divergence(v, w)

    for clients in cohorts:
        sent = []
        for c in clients:
            both = {f"v.{n}": t for n, t in personal[c].items()} | {f"w.{n}": w[n] for n in w}
            both = by_hand.descended(both, loss, by_hand.batches(fed, c))
            personal[c] = by_hand.of(both, "v.")
            sent.append(by_hand.of(both, "w."))
        w = by_hand.averaged(sent, [by_hand.SIZES[c] if options else 1 for c in clients])
        fed.round(*clients)
        by_hand.compare(by_hand.of(fed.state.shared, "net."), w)
        for c, v in enumerate(personal):
            by_hand.compare_tested(fed, c, v, "personal.")
