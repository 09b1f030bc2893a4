"""FedPAC: the invariants in docs/methods, with hand-worked numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

from lightning_modules.fedpac import FedPAC, FedPACServer, head_shares
from lightning_modules.fedrep import FedRep
from lightning_modules.nets import SplitNet
from pfl.core.seeds import generator
from pfl.core.state import select
from pfl.core.types import Upload
from tests.helpers.federation import Federation, equal, sgd
from tests.helpers.toy import ToyData, mlp, normed

HEAD, BODY = ("net.head.*",), ("net.backbone.*",)


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


def line():
    """Build a body with one parameter, a shift of zero: features are the inputs, D = 2."""

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x + self.by

    return SplitNet(Shift(), nn.Linear(2, 2))


def one_client(*rows):
    x, y = torch.tensor([x for x, _ in rows]), torch.tensor([y for _, y in rows])
    return ToyData([(x, y)], outputs=2, batch_size=2)


def test_statistics_by_hand():
    """f = (2, 0), (4, 0) of class 0, (0, 3) of class 1: sums (6, 0), (0, 3), n = 3.

    H = [(2, 0), (0, 1)], the mean of ||f||^2 is (4 + 16 + 9) / 3, so V = (29/3 - 5) / 3 = 14/9.
    """
    data = one_client(((2.0, 0.0), 0), ((4.0, 0.0), 0), ((0.0, 3.0), 1))
    federation = Federation(pac(line(), epochs=0, head_epochs=0), data)
    (result,) = federation.round()
    extra = result.upload.extra
    assert extra["profile"].tolist() == [[2.0, 0.0], [0.0, 1.0]]
    assert extra["variance"].item() == pytest.approx(14 / 9)
    assert extra["counts"].tolist() == [2, 1]
    assert result.upload.shared["centroids"].tolist() == [[3.0, 0.0], [0.0, 3.0]]


def test_one_sample_has_no_variance_and_a_zero_row():
    federation = Federation(pac(line(), epochs=0), one_client(((2.0, 1.0), 1)))
    (result,) = federation.round()
    assert result.upload.extra["variance"].item() == 0
    assert result.upload.extra["profile"].tolist() == [[0.0, 0.0], [2.0, 1.0]]
    assert result.upload.shared["centroids"].tolist() == [[0.0, 0.0], [2.0, 1.0]]
    assert federation.state.shared["centroids"][0].isnan().all()


def test_statistics_come_before_and_centroids_after_training():
    federation = Federation(pac(normed(), epochs=2))
    federation.round()
    module = federation.start(0).eval()
    split = federation.data.split(0, "train")
    with torch.no_grad():
        received = module.net.backbone(split.x)
    upload = federation.train(0).upload
    with torch.no_grad():
        trained = federation.module.eval().net.backbone(split.x)
    for label in range(3):
        member = split.targets == label
        if member.any():
            profile = received[member].sum(0) / len(split)
            torch.testing.assert_close(upload.extra["profile"][label], profile)
            torch.testing.assert_close(upload.shared["centroids"][label], trained[member].mean(0))


def test_alignment_starts_with_the_second_round_and_falls_back_on_local_centroids():
    """Class 0 has a global centroid, (9, 9); class 1 has none, and gets the received body's own."""
    data = one_client(((2.0, 0.0), 0), ((4.0, 0.0), 1), ((6.0, 0.0), 1))
    federation = Federation(pac(line(), epochs=0), data)
    federation.train(0)
    assert federation.module.aligned.tolist() == [0.0, 0.0]
    table = torch.tensor([[9.0, 9.0], [float("nan")] * 2])
    federation.state = replace(
        federation.state, shared={**federation.state.shared, "centroids": table}
    )
    federation.train(0)
    assert federation.module.aligned.tolist() == [1.0, 1.0]
    assert federation.module.targets.tolist() == [[9.0, 9.0], [5.0, 0.0]]


def test_phases_train_their_own_part():
    federation = Federation(pac(epochs=0))
    before = federation.state.shared
    (result,) = federation.round(0)
    assert equal(select(result.upload.shared, BODY), select(before, BODY))
    assert not equal(select(result.upload.shared, HEAD), select(before, HEAD))
    federation = Federation(pac(head_epochs=0))
    (result,) = federation.round(0)
    assert not equal(select(result.upload.shared, BODY), select(before, BODY))
    assert equal(select(result.upload.shared, HEAD), select(before, HEAD))


def stub(client, samples, head, counts, centroid, variance, profile):
    return Upload(
        client=client,
        samples=samples,
        shared={
            "net.backbone.w": torch.tensor([float(client)]),
            "net.head.w": torch.tensor([head]),
            "centroids": torch.tensor([[centroid]]),
        },
        extra={
            "counts": torch.tensor([counts], dtype=torch.int32),
            "variance": torch.tensor(variance),
            "profile": torch.tensor([[profile]]),
        },
    )


def test_the_servers_step_by_hand():
    """Clients 3 and 7 with 1 and 3 samples, equal profiles, V = 1 and 3: shares 3/4 and 1/4.

    Body (3 + 3 * 7) / 4 = 6, both heads 3/4 * 8 + 1/4 * 4 = 7, centroid (2 * 1 + 1 * 4) / 3 = 2.
    """
    server = FedPACServer()
    shared = {
        "net.backbone.w": torch.zeros(1),
        "net.head.w": torch.tensor([-1.0]),
        "centroids": torch.tensor([[float("nan")]]),
    }
    state = server.init(shared, [])
    uploads = [stub(3, 1, 8.0, 2, 1.0, 1.0, 0.5), stub(7, 3, 4.0, 1, 4.0, 3.0, 0.5)]
    after = server.aggregate(state, uploads)
    assert after.shared["net.backbone.w"].item() == 6
    assert after.shared["centroids"].item() == 2
    for client in (3, 7):
        head = server.broadcast(after, client, 2).shared["net.head.w"].item()
        assert head == pytest.approx(7, abs=1e-6)
    assert server.broadcast(after, 5, 2).shared["net.head.w"].item() == -1
    assert after.client_report["own_head"] == pytest.approx({3: 0.75, 7: 0.25}, abs=1e-6)
    again = server.aggregate(after, [])
    assert (again.round, again.heads) == (2, after.heads)


def test_absent_clients_keep_their_head_under_a_new_body():
    federation = Federation(pac())
    federation.round()
    head = federation.state.heads[2]
    federation.round(0, 1)
    assert equal(federation.state.heads[2], head)
    federation.test(2)
    present = federation.module.state_dict()
    assert equal(select(present, HEAD), head)
    assert equal(select(present, BODY), select(federation.state.shared, BODY))
