"""FML: the invariants in docs/methods."""

from math import log

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_modules.fml import FML
from pfl.core.types import Batch
from tests.helpers import by_hand
from tests.helpers.federation import SGD, Federation, equal, fit, own
from tests.helpers.toy import Point, blobs, mlp

X, Y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)


class Logits(Point):
    """A network whose parameter is the logits of every sample."""

    def forward(self, x):
        return self.w.expand(len(x), -1)


def gradients(v, w, **options):
    """Return the terms, and the gradients of their sum at both networks' logits."""
    module = FML(Logits(*w), private=Logits(*v), optimizer=SGD, **options)
    terms = module.losses(Batch(x=X, y=Y))
    sum(terms.values()).backward()
    found = {name: term.item() for name, term in terms.items()}
    return found, module.personal.w.grad.tolist(), module.net.w.grad.tolist()


@pytest.mark.parametrize(("kl", "scale"), [("batch", 1.0), ("element", 0.5)])
def test_divergences_by_hand(kl, scale):
    """Invariant 2: P(v) = (1/2, 1/2), P(w) = (3/4, 1/4)."""
    terms, of_v, of_w = gradients((0.0, 0.0), (log(3), 0.0), alpha=0, beta=0, kl=kl)
    assert terms["teach_personal"] == pytest.approx(0.130812 * scale, abs=1e-6)
    assert terms["teach_global"] == pytest.approx(0.143841 * scale, abs=1e-6)
    assert of_v == pytest.approx([-0.25 * scale, 0.25 * scale])
    assert of_w == pytest.approx([0.25 * scale, -0.25 * scale])


def test_terms_are_weighted():
    """CE(v) = ln 2 and CE(w) = -ln 3/4."""
    terms, _, _ = gradients((0.0, 0.0), (log(3), 0.0), alpha=0.9, beta=0.2)
    assert terms == pytest.approx(
        {
            **{"personal": 0.9 * log(2), "teach_personal": 0.1 * 0.130812},
            **{"global": -0.2 * log(0.75), "teach_global": 0.8 * 0.143841},
        },
        abs=1e-6,
    )


def test_without_stops_each_follows_the_other_divergence():
    """Invariant 5: at v the gradient of KL(P(v) || P(w)) is P(v) (log P(v)/P(w) - KL), added."""
    _, of_v, _ = gradients((0.0, 0.0), (log(3), 0.0), alpha=0, beta=0, detach=False)
    further = 0.5 * (log(0.5 / 0.75) - 0.143841)
    assert of_v == pytest.approx([-0.25 + further, 0.25 - further], abs=1e-6)


def test_equal_networks_teach_nothing():
    """Invariant 3: gradients are alpha and beta times that of the cross-entropy, (-1/4, 1/4)."""
    terms, of_v, of_w = gradients((log(3), 0.0), (log(3), 0.0), alpha=0.4, beta=0.8)
    assert terms["teach_personal"] == terms["teach_global"] == 0
    assert of_v == pytest.approx([-0.1, 0.1])
    assert of_w == pytest.approx([-0.2, 0.2])


def test_a_network_that_learns_from_labels_alone_depends_on_no_private_one():
    """Invariant 4, bit for bit; without stops it does depend."""
    for detach in (True, False):
        one, other = (
            fit(FML(mlp(), optimizer=SGD, alpha=alpha, beta=1, detach=detach), blobs())
            for alpha in (0.1, 0.9)
        )
        assert equal(one.server.shared, other.server.shared) == detach


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
        assert by_hand.distance(by_hand.of(fed.state.shared, "net."), w) < 1e-12
        for c, v in enumerate(personal):
            assert by_hand.disagreement(fed, c, v, "personal.") < 1e-12
