"""FedYogi: the invariants in docs/methods, with hand-worked numbers."""

import pytest
import torch

from lightning_modules.fedyogi import FedYogi
from pfl.core.types import ClientInfo, Upload
from tests.helpers import by_hand, facts
from tests.helpers.federation import SGD, fit
from tests.helpers.toy import Line, blobs, mlp

FACTS = {
    FedYogi: facts.Facts(
        travels=("net.",),
        floats=facts.NET,
        variants=[{"server_lr": 0.1, "tau": 0.1}],
    ),
}


def after(*means, **options):
    """Return w, m and v of a parameter of zero after rounds with these means of uploads."""
    server = FedYogi(Line(0.0), **options).server()
    state = server.init({"net.w": torch.tensor([0.0])}, [ClientInfo(0, 1, torch.ones(1))])
    for mean in means:
        state = server.aggregate(state, [Upload(0, 1, {"net.w": torch.tensor([mean])})])
    return [entry["net.w"].item() for entry in (state.shared, state.momentum, state.scale)]


def test_two_steps_by_hand():
    """From w = 0, v = 1e-6. A change of 1 is larger: v = 1e-6 + 0.01, m = 0.1, w = 0.03 m / d.

    Back to the same w, the change is 0: m = 0.09, and v, which is larger now, stays.
    A change of 0.01 has the square 1e-4, below v, which falls by 1e-6.
    """
    v = 1e-6 + 0.01
    d = v**0.5 + 1e-3
    w = 0.03 * 0.1 / d
    assert after(1.0) == pytest.approx([w, 0.1, v])
    assert after(1.0, w) == pytest.approx([w + 0.03 * 0.09 / d, 0.09, v])
    smaller = after(1.0, w + 0.01)
    assert smaller[1:] == pytest.approx([0.09 + 0.001, v - 1e-6])


def test_a_large_tau_is_a_plain_step():
    """The deviation stays at its initial tau, so that a change of 2 is divided by 2 tau / eta."""
    w, *_ = after(2.0, server_lr=1e4, tau=1e4, beta1=0.0)
    assert w == pytest.approx(1.0)


def test_without_a_rate_the_server_rests():
    run = fit(FedYogi(mlp(), optimizer=SGD, server_lr=0.0), blobs(), 2)
    for name, value in mlp().state_dict().items():
        assert torch.equal(run.server.shared[f"net.{name}"], value)


@pytest.mark.parametrize("cohorts", by_hand.COHORTS.values(), ids=by_hand.COHORTS)
@by_hand.up_to_rounding
def test_a_federation_by_hand(cohorts):
    fed, w = by_hand.federation(FedYogi, server_lr=0.1, tau=0.01), by_hand.initial()
    names = by_hand.trained(w)
    m = {n: torch.zeros_like(w[n]) for n in names}
    v = {n: torch.full_like(w[n], 1e-4) for n in names}
    for clients in cohorts:
        mean = by_hand.fedavg(fed, w, clients)
        for n in names:
            delta = mean[n] - w[n]
            m[n] = 0.9 * m[n] + 0.1 * delta
            grows = delta**2 > v[n]
            v[n] = torch.where(grows, v[n] + 0.01 * delta**2, v[n] - 0.01 * delta**2)
            mean[n] = w[n] + 0.1 * m[n] / (v[n].sqrt() + 0.01)
        w = mean
        fed.round(*clients)
        for c in range(4):
            by_hand.compare_tested(fed, c, w)
