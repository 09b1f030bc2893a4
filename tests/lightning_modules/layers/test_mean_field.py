"""Networks with Gaussian weights, as pFedBayes uses them."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from lightning_modules.layers import MeanFieldNet, constant, draw_noise
from lightning_modules.losses import mean_field_kl, mean_field_kl_slopes
from lightning_modules.nets import LeNet5
from pfl.core.seeds import generator, scoped
from tests.helpers.draws import normal
from tests.helpers.messages import parts, refuses


def build(seed: int = 0, **options: float) -> MeanFieldNet:
    with scoped(seed):
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        return MeanFieldNet(net, **options).double()


def test_every_weight_but_those_of_normalisation_is_gaussian():
    net = build()
    assert list(net.moments()) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    for mean, std in net.moments().values():
        assert mean.shape == std.shape
        torch.testing.assert_close(std, torch.full_like(std, 0.0485873516))  # log(1 + e^-3)


def test_a_weight_that_two_layers_share_is_one_gaussian():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[1].weight = layers[0].weight
    net = MeanFieldNet(layers)
    assert list(net.moments()) == ["0.weight", "0.bias", "1.bias"]
    noise = draw_noise(net.noise_shapes(1), torch.zeros(()))
    drawn = {name: m + s * noise[name][0] for name, (m, s) in net.moments().items()}
    x = torch.ones(2, 4)
    by_hand = (x @ drawn["0.weight"].T + drawn["0.bias"]) @ drawn["0.weight"].T + drawn["1.bias"]
    torch.testing.assert_close(net(x, noise=noise)[0], by_hand)


def test_means_keep_the_initialisation_or_are_drawn_anew():
    with scoped(3):
        plain = LeNet5(10)
    kept = MeanFieldNet(copy.deepcopy(plain))
    assert torch.equal(kept.mean.head.weight, plain.head.weight)
    drawn = MeanFieldNet(LeNet5(10), init_mean_std=0.1)
    weights = drawn.mean.backbone[7].weight.detach()
    assert float(weights.std()) == pytest.approx(0.1, rel=0.02)
    assert float(weights.mean()) == pytest.approx(0, abs=0.002)


def test_forward_at_the_means_is_the_network():
    net, x = build().eval(), normal(5, 4)
    assert torch.equal(net(x), net.mean(x))


def test_draws_are_networks_with_perturbed_weights():
    net, x = build().eval(), normal(5, 4)
    noise = draw_noise(net.noise_shapes(3), x, generator(1, "noise"))
    logits = net(x, noise=noise)
    assert logits.shape == (3, 5, 3)
    for k in range(3):
        drawn = copy.deepcopy(net.mean)
        with torch.no_grad():
            for name, (_, std) in net.moments().items():
                drawn.get_parameter(name).add_(std * noise[name][k])
        torch.testing.assert_close(logits[k], drawn(x))


def test_batch_norm_learns_from_every_draw():
    net, x = build().train(), normal(5, 4)
    net(x, samples=3)
    assert int(net.mean[1].num_batches_tracked) == 3


def test_kl_against_torch():
    """To 1e-6 in float64."""
    net, prior = build(0, init_raw_std=-1.0), build(1)
    expected = sum(
        kl_divergence(Normal(*net.moments()[name]), Normal(*prior.moments()[name])).sum()
        for name in net.moments()
    )
    found = mean_field_kl(net.moments(), prior.moments())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_constant_moments_stop_the_gradient():
    net, prior = build(0), build(1)
    mean_field_kl(net.moments(), constant(prior.moments())).backward()
    assert net.raw_std.get_parameter("0.weight").grad is not None
    assert all(parameter.grad is None for parameter in prior.parameters())


def test_written_out_slopes_of_kl_are_its_gradient():
    net, prior = build(0, init_raw_std=-1.0), build(1)
    moments = {
        n: tuple(m.detach().requires_grad_() for m in own) for n, own in net.moments().items()
    }
    mean_field_kl(moments, constant(prior.moments())).backward()
    for name, slopes in mean_field_kl_slopes(moments, prior.moments()).items():
        for moment, slope in zip(moments[name], slopes, strict=True):
            torch.testing.assert_close(slope, moment.grad)
    same = mean_field_kl_slopes(prior.moments(), prior.moments())
    assert not any(slope.any() for own in same.values() for slope in own)


def test_refuses_what_it_cannot_use():
    net, x = build(), normal(5, 4)
    refuses(partial(net, x), "at least 1", samples=0)
    with pytest.raises(ValueError, match=parts("noise ~ shapes")):
        net(x, noise={"0.weight": normal(2, 6, 4)})
    other = MeanFieldNet(nn.Linear(4, 3))
    with pytest.raises(ValueError, match=parts("'0.bias' ~ only one")):
        mean_field_kl(net.moments(), other.moments())
