"""pFedBayes: the invariants in docs/methods, with hand-worked numbers."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

from lightning_modules.layers import constant
from lightning_modules.local import Local
from lightning_modules.losses import mean_field_kl, monte_carlo_cross_entropy
from lightning_modules.pfedbayes import PFedBayes
from lightning_modules.steps.gradients import adam_step
from pfl.core.state import clone, select, weighted_mean
from pfl.core.types import Batch
from pfl.training import client_round
from tests.helpers.draws import normal
from tests.helpers.federation import Federation, equal
from tests.helpers.toy import ToyData, mlp, normed


def adam(lr):
    return partial(torch.optim.Adam, lr=lr)


def q_of(federation, client):
    stem = "personal.module."
    kept = federation.kept[client]
    return {n.removeprefix(stem): v for n, v in kept.items() if n.startswith(stem)}


def moments_of(state, name):
    return state[f"mean.{name}"], F.softplus(state[f"raw_std.{name}"])


def divergence(module, state):
    prior = module.net.moments()
    return module._divergence({name: moments_of(state, name) for name in prior}, prior)


def test_equal_gaussians_have_no_divergence():
    """Invariant 1: neither value nor gradient."""
    module = PFedBayes(mlp())
    module.per_sample.fill_(1)
    value = divergence(module, clone(module.net.state_dict()))
    value.backward()
    assert value.item() == 0
    assert not any(p.grad.any() for p in module.net.parameters())


def test_divergence_is_the_closed_form():
    """Invariant 2, float64: zeta / n_i times the sum over all weights and biases."""
    module = PFedBayes(mlp(), kl_weight=3.0).double()
    module.per_sample.fill_(1 / 8)
    state = module.net.state_dict()
    q = {name: value + 0.1 * normal(*value.shape) for name, value in state.items()}
    expected = 0.0
    for name in dict(module.net.mean.named_parameters()):
        pair = (Normal(*moments_of(found, name)) for found in (q, state))
        expected += kl_divergence(*pair).sum().item()
    assert divergence(module, q).item() == pytest.approx(3 / 8 * expected, rel=1e-6)


class Quiet(PFedBayes):
    """pFedBayes without noise."""

    def _fit(self, batch):
        noise = {name: torch.zeros_like(value) for name, value in batch.noise.items()}
        return super()._fit(batch._replace(noise=noise))


def test_one_step_by_hand():
    """One weight w for both logits' difference, one sample x = 1, n = 1, zeta = 2, no noise.

    q starts at mu = 0, the received v at mu = 1, sigma = softplus(rho) = 1. CE's slope for y = 0
    with logits (w, 0) at w = 0 is -1/2, that of 2 KL is 2 (0 - 1) / 1: in all negative, and Adam's
    first step is its rate against the sign: mu = 0.01. The divergence then is 2 (0.99^2) / 2.
    """

    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return torch.cat([self.w * x, 0 * x], 1)

    raw = math.log(math.e - 1)
    options = {"kl_weight": 2.0, "inner_steps": 1, "inner_lr": 0.01}
    module = Quiet(
        Difference(), init_raw_std=raw, init_mean_std=None, optimizer=adam(0.1), **options
    )
    data = ToyData([(torch.ones(1, 1), torch.zeros(1, dtype=torch.long))], outputs=2)
    federation = Federation(module, data)
    federation.state.shared["net.mean.w"].fill_(1.0)
    (result,) = federation.round()
    q = q_of(federation, 0)
    assert q["mean.w"].item() == pytest.approx(0.01, rel=1e-5)
    assert result.train["local/ce"] == pytest.approx(math.log(2), rel=1e-5)
    assert result.train["local/kl"] == pytest.approx(1.0, rel=1e-5)
    ratio = F.softplus(q["raw_std.w"]).item() ** 2
    after = 2 * 0.5 * (ratio - 1 - math.log(ratio) + 0.99**2)
    assert result.train["local/prior"] == pytest.approx(after, rel=1e-4)
    # v follows q: its mean falls by its own rate.
    assert federation.state.shared["net.mean.w"].item() == pytest.approx(0.9, rel=1e-5)


def test_the_gradient_of_q_is_that_of_its_objective():
    """Written out against automatic differentiation, two draws, batch norm; float64."""
    module = PFedBayes(normed(), kl_weight=3.0, mc_samples=2, init_raw_std=-1.0)
    module = module.double().train()
    module.per_sample.fill_(1 / 8)
    net, prior = module.net, constant(PFedBayes(normed(seed=2)).double().net.moments())
    noise = {f"3:{n}": normal(*shape) for n, shape in net.noise_shapes(2).items()}
    batch = Batch(normal(6, 5), torch.arange(6) % 3, torch.ones(6).double(), noise)
    q = {name: value.detach().clone() for name, value in net.named_parameters()}
    found, ce, _, _ = module._slopes(q, prior, batch, 3)
    own = {name.removeprefix("3:"): draw for name, draw in noise.items()}
    expected = monte_carlo_cross_entropy(net(batch.x, noise=own), batch.y)
    (expected + 3 / 8 * mean_field_kl(net.moments(), prior)).backward()
    torch.testing.assert_close(ce, expected.detach())
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)


def test_without_prior_and_spread_q_is_local_and_v_stays():
    """Invariant 3: zeta = 0, sigma = 1e-6, one inner step a batch, against Adam on the means."""
    bayes = Federation(
        PFedBayes(mlp(), kl_weight=0.0, init_raw_std=-30.0, inner_steps=1, init_mean_std=None)
    )
    alone = Federation(Local(mlp(), optimizer=adam(1e-3), persist_optimizer=True))
    before = bayes.state.shared
    for _ in range(3):
        bayes.round()
        alone.round()
    assert equal(bayes.state.shared, before)
    for client in range(3):
        found = q_of(bayes, client)
        for name, _ in mlp().named_parameters():
            expected = alone.kept[client][f"net.{name}"]
            torch.testing.assert_close(found[f"mean.{name}"], expected, rtol=1e-3, atol=1e-4)


def test_v_goes_to_q():
    """Invariant 4: q at rest, many steps."""
    module = PFedBayes(mlp(), inner_lr=0.0, local_steps=60, optimizer=adam(0.02), inner_steps=1)
    federation = Federation(module)
    for value in federation.state.shared.values():
        value.add_(0.05)
    first = federation.train(0).train["local/prior"]
    federation.round(0)
    q, v = q_of(federation, 0), federation.state.shared
    assert all(torch.allclose(v[f"net.{name}"], value, atol=0.01) for name, value in q.items())
    assert first > 0


def test_the_servers_step():
    """Invariant 5: beta = 0 stays; beta = 1 averages means and rhos, all clients alike."""
    still = Federation(PFedBayes(mlp(), server_step=0.0))
    before = still.state.shared
    still.round()
    assert equal(still.state.shared, before)
    federation = Federation(PFedBayes(mlp()))
    uploads = [result.upload.shared for result in federation.round()]
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert equal(federation.state.shared, weighted_mean(uploads, third))
    (result,) = federation.round(1)
    assert equal(federation.state.shared, result.upload.shared)


def test_q_stays_while_a_client_is_away_and_goes_on():
    federation = Federation(PFedBayes(mlp()))
    federation.round()
    left = q_of(federation, 2)
    federation.round(0, 1)
    assert equal(q_of(federation, 2), left)
    start = federation.start(2)
    assert equal(clone(start.personal.module.state_dict()), left)
    assert equal(select(start.state_dict(), ("net.*",)), federation.state.shared)
    assert federation.kept[2]["steps"].item() == 5  # one batch of five inner steps


def test_q_is_tested_v_is_the_global_model():
    federation = Federation(PFedBayes(mlp()))
    federation.round()
    assert equal(federation.personal(1), q_of(federation, 1))
    federation.module.load_global(federation.server.broadcast(federation.state, 1, 1))
    state = select(federation.module.state_dict(), ("net.*",))
    assert equal(state, federation.state.shared)
    client_round.train(federation.context, replace(federation.job(1), splits=("test",)))
    left = clone(federation.module.net.state_dict())
    assert equal(left, clone(federation.module.personal.module.state_dict()))


def test_normalisation_travels_as_plain_numbers():
    """Their scales are trained with q, sent, and averaged; q takes the average over."""
    federation = Federation(PFedBayes(normed(), inner_lr=0.1))
    scale, mean = "net.mean.backbone.1.weight", "net.mean.backbone.1.running_mean"
    assert not any("raw_std.backbone.1" in name for name in federation.state.shared)
    before = clone(federation.state.shared)
    uploads = [result.upload.shared for result in federation.round()]
    for name in (scale, mean):
        assert not torch.equal(uploads[0][name], before[name])
        expected = sum(upload[name] for upload in uploads) / 3
        torch.testing.assert_close(federation.state.shared[name], expected)
        start = federation.start(0)
        own = start.state_dict()[name.replace("net.", "personal.module.")]
        assert torch.equal(own, federation.state.shared[name])


def test_running_statistics_take_a_batch_in_once():
    """Five inner steps of one draw each; momentum 0.1 from 0."""
    norm = nn.BatchNorm1d(2, affine=False)
    module = PFedBayes(nn.Sequential(norm, nn.Linear(2, 3))).train()
    noise = module.plan()[0].noise
    assert len(noise) == 5 * 2
    draws = {name: torch.zeros(shape) for name, shape in noise.items()}
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    entries = module._fit(Batch(x, torch.tensor([0, 1]), None, draws)).entries
    found = entries["personal.module.mean.0.running_mean"]
    torch.testing.assert_close(found, torch.tensor([0.2, 0.3]))


def test_adam_is_torchs():
    """Four steps against torch.optim.Adam."""
    value = nn.Parameter(normal(3))
    theirs = torch.optim.Adam([value], lr=0.1)
    ours = {"w": value.detach().clone()}
    moments = {"w": torch.zeros(3).double()}, {"w": torch.zeros(3).double()}
    for step in range(1, 5):
        slope = normal(3, seed=step)
        value.grad = slope
        theirs.step()
        count = torch.tensor(float(step), dtype=torch.float64)
        ours, moments = adam_step(ours, {"w": slope}, moments, count, 0.1)
        torch.testing.assert_close(ours["w"], value.detach())
