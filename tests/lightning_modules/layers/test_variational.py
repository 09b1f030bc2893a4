"""A linear layer with Gaussian weights, against hand-worked numbers and torch."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from lightning_modules.layers import (
    VariationalLinear,
    draw_noise,
    inverse_softplus,
    softplus_std,
    softplus_std_slope,
)
from lightning_modules.layers.variational import MIN_STD
from pfl.core.seeds import generator
from tests.helpers.draws import normal
from tests.helpers.messages import parts, refuses


def layer(init_std: float = 0.5) -> VariationalLinear:
    return VariationalLinear(4, 3, init_std).double()


@pytest.mark.parametrize("init_std", [1e-3, 0.01, 0.1, 1.0, 30.0])
def test_standard_deviations_start_where_they_are_told(init_std):
    built = VariationalLinear(4, 3, init_std)
    for std in (built.std_weight, built.std_bias):
        torch.testing.assert_close(std, torch.full_like(std, init_std), rtol=1e-5, atol=1e-6)
    assert inverse_softplus(1.0) == pytest.approx(math.log(math.e - 1))


def test_means_start_as_normal_draws():
    wide = VariationalLinear(100, 50)
    assert float(wide.mean_weight.detach().std()) == pytest.approx(1, abs=0.05)


def test_forward_without_draws_is_the_linear_layer_of_the_means():
    built, z = layer(), normal(5, 4)
    torch.testing.assert_close(built(z), z @ built.mean_weight.mT + built.mean_bias)


def test_draws_are_means_plus_scaled_noise():
    """One draw at a time, by hand."""
    built, z = layer(), normal(5, 4)
    noise = draw_noise(built.noise_shapes(3), z, generator(1, "noise"))
    logits = built(z, noise=noise)
    assert logits.shape == (3, 5, 3)
    for k in range(3):
        weight = built.mean_weight + built.std_weight * noise["weight"][k]
        bias = built.mean_bias + built.std_bias * noise["bias"][k]
        torch.testing.assert_close(logits[k], z @ weight.mT + bias)
    assert torch.equal(built(z, samples=3, noise=noise), logits)


def test_standard_deviations_do_not_vanish():
    built = layer()
    nn.init.constant_(built.raw_std_weight, -1e3)
    assert torch.equal(built.std_weight, torch.full_like(built.std_weight, MIN_STD))
    value = built.kl(built.mean_weight.detach(), built.mean_bias.detach(), 1.0)
    assert value.isfinite()


def test_the_slope_of_standard_deviations_is_their_gradient():
    """Below the bound, just above it, and where softplus is the identity; bit for bit."""
    raw = torch.tensor([-30.0, -13.5, -3.0, 0.0, 2.0, 19.0, 25.0], requires_grad=True)
    std, slope = softplus_std(raw), torch.arange(1.0, 8.0)
    std.backward(slope)
    found = softplus_std_slope(raw.detach(), std.detach(), slope)
    assert torch.equal(found, raw.grad)
    assert found[0] == 0 < found[1]


def test_kl_against_torch():
    """With a prior mean of its own for every weight and one variance."""
    built, prior = layer(), {"weight": normal(3, 4), "bias": normal(3, seed=1)}
    expected = sum(
        kl_divergence(Normal(mean, std), Normal(prior[name], 0.7)).sum()
        for name, mean, std in (
            ("weight", built.mean_weight, built.std_weight),
            ("bias", built.mean_bias, built.std_bias),
        )
    )
    torch.testing.assert_close(built.kl(prior["weight"], prior["bias"], 0.7), expected)
    tensor = torch.tensor(0.7, dtype=torch.float64)
    torch.testing.assert_close(built.kl(prior["weight"], prior["bias"], tensor), expected)


def test_kl_of_the_first_round_is_zero_and_flat():
    """mean = w and std = rho, in float32, exactly."""
    built = VariationalLinear(84, 10)
    weight, bias = built.mean_weight.detach().clone(), built.mean_bias.detach().clone()
    rho = torch.cat([built.std_weight.flatten(), built.std_bias]).square().mean().sqrt().detach()
    assert float(rho) == pytest.approx(1, abs=1e-6)
    value = built.kl(weight, bias, built.std_bias[0].detach())
    value.backward()
    assert float(value.detach()) == 0
    for parameter in built.parameters():
        assert not parameter.grad.any()


def test_variational_layer_refuses_what_it_cannot_use():
    refuses(partial(VariationalLinear, 4, 3), "positive", init_std=0)
    built, z = layer(), normal(5, 4)
    refuses(partial(built, z), "at least 1", samples=0)
    noise = draw_noise(built.noise_shapes(2), z)
    with pytest.raises(ValueError, match=r"shapes .*\(3, 3, 4\).*got .*\(2, 3, 4\)"):
        built(z, samples=3, noise=noise)
    with pytest.raises(ValueError, match=parts("noise ~ shapes")):
        built(z, noise={"weight": noise["weight"]})
