"""pFedVEM: the invariants in docs/methods on server, confidence and likelihood."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from lightning_modules.layers import inverse_softplus
from lightning_modules.nets import LeNet5
from lightning_modules.pfedvem import PFedVEM, VEMServer, confidence
from pfl.core.server import ServerState
from pfl.core.types import Batch, Upload
from tests.helpers.toy import mlp
from tests.lightning_modules.vem import (
    C,
    D,
    broadcast,
    broadcast_of,
    head_batch,
    info,
    line,
    posterior,
)

# The server.


def sent(client, samples, base, mean, tau):
    shared = {
        "net.backbone.w": torch.tensor([base]),
        "server_head_weight": torch.tensor([[mean, -mean]]),
        "server_head_bias": torch.tensor([2 * mean]),
    }
    return Upload(client, samples, shared, {"confidence": torch.tensor(tau)})


START = ServerState(sent(0, 1, 10.0, 10.0, 1.0).shared)


def test_base_by_samples_and_head_by_confidence():
    """Samples 30 and 10: base (30 * 2 + 10 * 6) / 40 = 3. Confidences 1 and 3:
    w = (1 * 0 + 3 * 4) / 4 = 3, its bias twice that, with the same scalar."""
    after = VEMServer().aggregate(START, [sent(0, 30, 2.0, 0.0, 1.0), sent(4, 10, 6.0, 4.0, 3.0)])
    assert after.shared["net.backbone.w"].tolist() == [3.0]
    assert after.shared["server_head_weight"].tolist() == [[3.0, -3.0]]
    assert after.shared["server_head_bias"].tolist() == [6.0]
    assert after.client_report["confidence"] == {0: 1.0, 4: 3.0}
    assert after.client_report["weight"] == {0: 0.75, 4: 0.25}
    assert after.round == 1


def test_equal_confidences_give_the_plain_mean_and_one_upload_itself():
    """Invariant 1: (1 + 2 + 6) / 3 = 3."""
    uploads = [sent(i, n, 0.0, m, 0.7) for i, (n, m) in enumerate([(5, 1.0), (1, 2.0), (9, 6.0)])]
    after = VEMServer().aggregate(START, uploads)
    assert after.shared["server_head_bias"].tolist() == [6.0]
    alone = VEMServer().aggregate(START, [sent(3, 9, 0.3, 0.1, 17.0)])
    assert torch.equal(alone.shared["server_head_weight"], torch.tensor([[0.1, -0.1]]))


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 100)), min_size=1, max_size=5),
    st.floats(0.01, 100),
)
def test_w_minimises_the_weighted_distance_whatever_the_scale_of_tau(pairs, scale):
    """Invariants 1 and 5.

    The gradient of sum tau_j ||mean_j - w||^2 at w is zero; scaling all tau changes nothing.
    """
    means, taus = (torch.tensor(values) for values in zip(*pairs, strict=True))
    servers = [
        VEMServer()
        .aggregate(START, [sent(i, 1, 0.0, m, t * s) for i, (m, t) in enumerate(pairs)])
        .shared["server_head_weight"][0, 0]
        for s in (1.0, scale)
    ]
    slope = (taus * (servers[0] - means)).sum() / taus.sum()
    assert slope.item() == pytest.approx(0, abs=1e-5)
    torch.testing.assert_close(servers[1], servers[0], atol=1e-5, rtol=1e-5)


def test_momentum_keeps_a_share_of_the_old():
    """Base 0.25 * 10 + 0.75 * 2 = 4, bias of the head 0.25 * 20 + 0.75 * 8 = 11."""
    after = VEMServer(momentum=0.25).aggregate(START, [sent(0, 3, 2.0, 4.0, 1.0)])
    assert after.shared["net.backbone.w"].tolist() == [4.0]
    assert after.shared["server_head_bias"].tolist() == [11.0]


def test_a_newcomer_has_the_servers_head_and_the_mean_confidence():
    """Confidences 1 and 3: tau is 2, and the standard deviation its inverse's root."""
    after = VEMServer().aggregate(START, [sent(0, 30, 2.0, 0.0, 1.0), sent(4, 10, 6.0, 4.0, 3.0)])
    _, kept = VEMServer().welcome(after, info(9), [])
    assert kept["confidence"].item() == 2.0
    assert torch.equal(kept["net.head.mean_weight"], after.shared["server_head_weight"])
    for name in ("net.head.raw_std_weight", "net.head.raw_std_bias"):
        torch.testing.assert_close(F.softplus(kept[name]), torch.full_like(kept[name], 2**-0.5))


def test_a_benchmark_draws_both_rates_from_the_papers_range():
    rates = [one for one in PFedVEM.space() if one.log]
    assert [(rate.name, rate.low, rate.high) for rate in rates] == [
        ("lr_head", 1e-4, 0.1),
        ("lr_base", 1e-4, 0.1),
    ]


# The start.


@pytest.mark.parametrize("init_std", [1.0, 0.1, 0.01])
def test_at_the_start_the_posterior_is_the_prior(init_std):
    """Invariants 2 and 6: tau = 1 / init_std^2; KL and its gradient are zero up to rounding."""
    module = PFedVEM(mlp(), init_std=init_std)
    torch.testing.assert_close(module.head.std_weight, torch.full((C, D), init_std))
    module.receive(broadcast_of(module), info())
    assert module.confidence.item() == pytest.approx(init_std**-2, rel=1e-6)
    kl = module.free_energy(Batch(torch.zeros(1, D), torch.zeros(1).long()))["kl"]
    kl.backward()
    assert kl.item() == pytest.approx(0, abs=1e-10)
    assert module.head.mean_weight.grad.abs().max() == 0
    assert module.head.raw_std_weight.grad.abs().max() < 1e-5


def test_a_posterior_stays_whole_and_starts_with_its_own_confidence():
    """init_std = 1/2: tau = 4, before anything is received."""
    module = PFedVEM(mlp(), init_std=0.5, tau_timing="after_head")
    assert module.confidence.item() == 4
    posterior = {f"net.head.{name}" for name, _ in module.head.named_parameters()}
    assert set(module.kept_names()) == posterior | {"confidence"}


def test_first_means_are_the_servers_normal_draws_and_follow_the_network():
    """1,010 draws from N(0, 1): mean within 0.15, standard deviation within 0.1."""
    module = PFedVEM(LeNet5(10, hidden=(100,)))
    assert torch.equal(module.head.mean_weight, module.server_head_weight)
    assert torch.equal(module.head.mean_bias, module.server_head_bias)
    w = torch.cat([module.server_head_weight.flatten(), module.server_head_bias])
    assert abs(w.mean().item()) < 0.15
    assert w.std().item() == pytest.approx(1, abs=0.1)
    once, again, other = (PFedVEM(mlp(seed=seed)).server_head_weight for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


# KL and confidence.


def test_confidence_by_hand():
    """Means differ from w by 1, 0, 0, 1; std 1/2: rho^2 = (4 * 1/4 + 2) / 4 = 3/4, tau = 4/3."""
    module = line()
    posterior([[1.0], [2.0]], [0.0, 1.0], 0.5, module)
    module.receive(broadcast(module, [[0.0], [2.0]], [0.0, 0.0]), info())
    assert module.confidence.item() == pytest.approx(4 / 3)


def test_the_confidence_counts_weights_and_biases():
    """Weights: off by 0 and 0, std 1/2. Biases: off by 1 and 3, std 1. d = 4, and
    rho^2 = (2 / 4 + 2 + 1 + 9) / 4 = 3.125; of the weights alone it is 1/4."""
    module = line()
    posterior([[1.0], [2.0]], [1.0, 3.0], 0.5, module)
    with torch.no_grad():
        module.head.raw_std_bias.fill_(inverse_softplus(1.0))
    module.receive(broadcast(module, [[1.0], [2.0]], [0.0, 0.0]), info())
    assert module.confidence.item() == pytest.approx(1 / 3.125)


def test_confidence_of_zero_spread_is_one_and_of_tiny_spread_bounded():
    """d / max(1e-12, 1e-8) = 3e8."""
    mean, none = torch.zeros(3), torch.zeros(3)
    assert confidence(mean, none, mean).item() == 1
    prior = torch.tensor([1e-6, 0.0, 0.0])
    assert confidence(mean, none, prior).item() == pytest.approx(3e8)


@given(st.floats(0, 3), st.floats(0.01, 3), st.floats(0.01, 1))
def test_distance_and_spread_lower_the_confidence(distance, std, more):
    """Invariant 9."""
    mean, ones = torch.zeros(4), torch.ones(4)
    tau = confidence(mean, std * ones, distance * ones)
    assert confidence(mean, std * ones, (distance + more) * ones) < tau
    assert confidence(mean, (std + more) * ones, distance * ones) < tau


def kl_of(module, tau):
    module.confidence.fill_(tau)
    empty = Batch(torch.zeros(1, 1).double(), torch.zeros(1).long())
    return module.free_energy(empty)["kl"]


def test_kl_is_that_of_the_library_and_positive_off_the_prior():
    """Invariant 3."""
    module = line()
    posterior([[1.0], [2.0]], [0.0, 1.0], 0.5, module)
    module.receive(broadcast(module, [[0.0], [2.0]], [0.0, 0.0]), info())
    scalars = [1.0, 2.0, 0.0, 1.0], [0.0, 2.0, 0.0, 0.0]
    mean, w = (torch.tensor(v, dtype=torch.float64) for v in scalars)
    std = torch.full((4,), 0.5, dtype=torch.float64)
    for tau in (0.3, 4 / 3, 5.0):
        expected = kl_divergence(Normal(mean, std), Normal(w, tau**-0.5)).sum()
        torch.testing.assert_close(kl_of(module, tau), expected)
        assert expected > 0


def test_the_confidence_minimises_the_kl():
    """Invariant 4: d KL / d rho^2 = 0 at rho^2 = 3/4, and any other is larger."""
    module = line()
    posterior([[1.0], [2.0]], [0.0, 1.0], 0.5, module)
    module.receive(broadcast(module, [[0.0], [2.0]], [0.0, 0.0]), info())
    best = kl_of(module, 4 / 3)
    assert all(kl_of(module, 1 / rho2) > best for rho2 in (0.3, 0.7, 0.8, 2.0))
    h = 1e-5
    slope = (kl_of(module, 1 / (0.75 + h)) - kl_of(module, 1 / (0.75 - h))) / (2 * h)
    assert slope.item() == pytest.approx(0, abs=1e-8)


def test_the_prior_pulls_with_the_confidence():
    """d KL / d mean = tau (mean - w): 3 * (1 - 0, 2 - 2) and 3 * (0, 1)."""
    module = line()
    posterior([[1.0], [2.0]], [0.0, 1.0], 0.5, module)
    module.receive(broadcast(module, [[0.0], [2.0]], [0.0, 0.0]), info())
    kl_of(module, 3.0).backward()
    torch.testing.assert_close(module.head.mean_weight.grad.flatten().tolist(), [3.0, 0.0])
    torch.testing.assert_close(module.head.mean_bias.grad.tolist(), [0.0, 3.0])


# The likelihood.


def test_without_spread_draws_are_the_means():
    """Invariant 8."""
    module = PFedVEM(mlp()).double()
    with torch.no_grad():
        module.head.raw_std_weight.fill_(-30.0)
        module.head.raw_std_bias.fill_(-30.0)
    batch = head_batch(8, module)
    at_mean = nn.functional.cross_entropy(module.head(batch.x), batch.y, reduction="sum")
    found = module.free_energy(batch)["nll"]
    torch.testing.assert_close(found, at_mean, rtol=1e-5, atol=0)


def test_twice_the_data_is_twice_the_likelihood_and_the_same_kl():
    """Invariant 10."""
    module = PFedVEM(mlp()).double()
    with torch.no_grad():
        module.head.mean_bias.add_(0.5)
    once = head_batch(8, module)
    twice = once._replace(x=once.x.repeat(2, 1), y=once.y.repeat(2))
    one, two = module.free_energy(once), module.free_energy(twice)
    torch.testing.assert_close(two["nll"], 2 * one["nll"])
    assert torch.equal(two["kl"], one["kl"])


def test_likelihood_of_the_head_by_hand():
    """z = 1, y = 0, two draws. Noise (2, 0) and (0, 0) on the weights at std 1/2 gives logits
    (1, 0) and (0, 0): nll = (log(1 + e^-1) + log 2) / 2 = (0.313262 + 0.693147) / 2."""
    module = line(mc_samples=2)
    posterior([[0.0], [0.0]], [0.0, 0.0], 0.5, module)
    weight = torch.tensor([[[2.0], [0.0]], [[0.0], [0.0]]]).double()
    noise = {"weight": weight, "bias": torch.zeros(2, 2).double()}
    batch = Batch(torch.ones(1, 1).double(), torch.tensor([0]), None, noise)
    assert module.free_energy(batch)["nll"].item() == pytest.approx(0.5032045, abs=1e-6)
    assert module.losses(batch)["nll"].item() == pytest.approx(0.5032045, abs=1e-6)
    mean_head = line(base_loss="mean_head")
    posterior([[0.0], [0.0]], [0.0, 0.0], 0.5, mean_head)
    assert mean_head.losses(batch)["ce"].item() == pytest.approx(0.6931472)
