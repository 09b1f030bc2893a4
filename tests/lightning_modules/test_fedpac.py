"""FedPAC: the invariants in docs/methods, with hand-worked numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy, linear

from lightning_modules.fedpac import FedPAC, head_shares
from lightning_modules.fedrep import FedRep
from pfl.core.seeds import generator
from pfl.core.state import select
from tests.helpers import by_hand, facts
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import mlp, normed

FACTS = {
    FedPAC: facts.Facts(
        travels=("net.", "centroids"),
        extra=("counts", "variance", "profile"),
        # Down: the centroids; up: also counts, variance and profile.
        floats=(facts.NET + facts.MEANS, facts.NET + facts.MEANS + 3 + 1 + facts.MEANS),
        stacks=[{"alignment": 0.0}],
        needs_classes=True,
        needs_parts=True,
        not_private="pass 'statistics': it computes statistics of the samples without noise",
    ),
}

BODY = ("net.backbone.*",)


def pac(net=None, **options):
    net = mlp() if net is None else net
    return FedPAC(net, optimizer=sgd(), **{"head_lr": 0.1, **options})


@pytest.mark.parametrize("net", [mlp, normed])
def test_without_alignment_and_mixing_it_is_fedrep(net):
    """Invariant 5, bitwise: a single participant's head is its own."""
    ours = Federation(pac(net(), alignment=0, epochs=2))
    theirs = Federation(FedRep(net(), optimizer=sgd(), head_epochs=1, body_epochs=2))
    for client in (0, 2, 1, 0):
        ours.round(client)
        theirs.round(client)
        assert equal(select(ours.state.shared, BODY), theirs.state.shared)
        assert equal(ours.state.heads[client], theirs.kept[client])


def simplex_problem(seed, m=5, size=6):
    rng = generator(seed, "fedpac")
    variances = torch.rand(m, generator=rng, dtype=torch.float64) * 0.1
    profiles = torch.randn(m, 2, size // 2, generator=rng, dtype=torch.float64) * 0.3
    return variances, profiles


def quadratic(variances, profiles, i):
    """Return P_i as it is written: diag(V) + G_i G_i^T."""
    gaps = (profiles[i] - profiles).flatten(1).numpy()
    return np.diag(variances.numpy()) + gaps @ gaps.T


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_shares_lie_on_the_simplex_and_are_least(seed):
    """Invariant 1, and agreement with a general solver."""
    variances, profiles = simplex_problem(seed)
    shares = head_shares(variances, profiles, min_share=0.0).numpy()
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(1), 1)
    for i, row in enumerate(shares):
        cost = quadratic(variances, profiles, i) + 1e-8 * np.eye(5)
        value = row @ cost @ row
        assert value <= cost.diagonal().min() + 1e-12
        assert value <= cost.mean() + 1e-12
        start = np.full(5, 0.2)
        found = minimize(
            lambda a, p=cost: a @ p @ a,
            start,
            jac=lambda a, p=cost: 2 * p @ a,
            method="SLSQP",
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert value <= found.fun + 1e-9


def test_equal_profiles_share_by_inverse_variance():
    """Invariant 2: V = 1, 2, 4 gives 4/7, 2/7, 1/7 for everybody."""
    shares = head_shares(torch.tensor([1.0, 2.0, 4.0]), torch.ones(3, 2, 2))
    expected = torch.tensor([4.0, 2.0, 1.0]).double() / 7
    torch.testing.assert_close(shares, expected.expand(3, 3), rtol=1e-6, atol=1e-6)


def test_one_participant_keeps_its_head():
    """Invariant 2."""
    assert head_shares(torch.zeros(1), torch.ones(1, 2, 2)).tolist() == [[1.0]]


def test_no_variance_at_all_shares_evenly():
    """Equal features everywhere: V = 0, and only the added 1e-8 is left."""
    shares = head_shares(torch.zeros(4), torch.ones(4, 2, 2))
    torch.testing.assert_close(shares, torch.full((4, 4), 0.25).double())


def test_distant_groups_do_not_mix():
    """Invariant 3: profiles at (10, 0) and (0, 10), V = 0.01, two clients each.

    With t for the other group the cost is ``0.005 (1 - t)^2 + (0.005 + 200) t^2``, least at
    ``t = 0.005 / 200.01``, half of it for each.
    """
    profiles = torch.zeros(4, 1, 2)
    profiles[:2, 0, 0] = profiles[2:, 0, 1] = 10.0
    variances = torch.full((4,), 0.01)
    before = head_shares(variances, profiles, min_share=0.0)
    assert float(before[0, 2]) == pytest.approx(0.005 / 200.01 / 2, rel=1e-3)
    after = head_shares(variances, profiles)
    expected = torch.tensor([[0.5, 0.5, 0, 0]] * 2 + [[0, 0, 0.5, 0.5]] * 2).double()
    torch.testing.assert_close(after, expected)
    assert (after[expected == 0] == 0).all()


def test_shares_below_the_threshold_for_all_stay():
    """2,000 equal heads have 0.0005 each; cutting them all would leave nothing."""
    shares = head_shares(torch.ones(40), torch.zeros(40, 1, 1), min_share=0.5)
    torch.testing.assert_close(shares, torch.full((40, 40), 1 / 40).double())


@given(st.permutations(range(5)))
@settings(max_examples=10, deadline=None)
def test_permuting_clients_permutes_shares(order):
    """Invariant 4."""
    variances, profiles = simplex_problem(1)
    shares = head_shares(variances, profiles)
    permuted = head_shares(variances[list(order)], profiles[list(order)])
    torch.testing.assert_close(permuted, shares[list(order)][:, list(order)], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "options", [{"head_epochs": 2}, {"alignment": 0.3, "min_share": 0.2, "weighting": "uniform"}]
)
@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts, options):
    fed, w = by_hand.federation(FedPAC, head_lr=0.05, **options), by_hand.initial()
    first = {n: w.pop(n) for n in ("head.weight", "head.bias")}
    heads, centroids = dict.fromkeys(range(4), first), {}
    sizes = [1] * 4 if "weighting" in options else by_hand.SIZES
    for clients in cohorts:
        bodies, sent, variances, profiles, rows = [], [], [], [], {}
        for c in clients:
            (x, y), classes = by_hand.samples(fed, c), range(3)
            z = by_hand.features(w, x)
            profiles.append(torch.stack([z[y == k].sum(0) for k in classes]) / len(y))
            rest = z.square().sum() / len(y) - profiles[-1].square().sum()
            variances.append(rest / len(y))
            own = dict(zip(*by_hand.class_means(fed, c, w), strict=True))
            targets = {int(k): centroids.get(int(k), mean) for k, mean in own.items()}

            def of_head(h, x, y, w=w):
                return cross_entropy(linear(by_hand.features(w, x), *h.values()), y)

            steps = by_hand.batches(fed, c, options.get("head_epochs", 1), "head")
            head = by_hand.descended(heads[c], of_head, steps, 0.05)

            strength = options.get("alignment", 1.0) if centroids else 0

            def of_body(v, x, y, head=head, targets=targets, strength=strength):
                z = by_hand.features(v, x, True)
                apart = z - torch.stack([targets[int(k)] for k in y])
                of_labels = cross_entropy(linear(z, *head.values()), y)
                return of_labels + strength * apart.square().mean()

            body = by_hand.descended(w, of_body, by_hand.batches(fed, c, phase="body"))
            for k, mean in zip(*by_hand.class_means(fed, c, body), strict=True):
                rows.setdefault(int(k), []).append(({"": mean}, int((y == k).sum())))
            bodies.append(body)
            sent.append(head)
        w = by_hand.averaged(bodies, [sizes[c] for c in clients])
        centroids = centroids | {
            k: by_hand.averaged(*zip(*pairs, strict=True))[""] for k, pairs in rows.items()
        }
        least = options.get("min_share", 1e-3)
        shares = head_shares(torch.stack(variances), torch.stack(profiles), least)
        heads |= {
            c: by_hand.averaged(sent, share) for c, share in zip(clients, shares, strict=True)
        }
        fed.round(*clients)
        for c in range(4):
            by_hand.compare_tested(fed, c, w | heads[c])
