"""Dropout's masks: the same alone and in a stack, in every layout, precision and kernel."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

from pfl.core.layer_draws import LayerDraws, keys_of, watched
from pfl.core.noise import bernoulli
from pfl.engines.stack.draws import StackedDraws

CPU = torch.device("cpu")
LAYERS = (nn.Dropout(0.3), nn.Dropout2d(0.3), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3))


def alone(layer, x, seed=1, own=True, calls=1):
    with LayerDraws([layer]).of(seed, CPU, own):
        return [layer(x) for _ in range(calls)]


def images(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_masks_depend_on_places_alone():
    """Not on strides, precision, kernel, or whose stream the keys come from."""
    layer, x = nn.Dropout(0.25), images(4, 3, 5, 5)
    first, second = alone(layer, x, calls=2)
    assert 0.6 < (first != 0).double().mean() < 0.9
    assert not torch.equal(first, second)
    before = torch.get_rng_state()
    assert torch.equal(alone(layer, x, own=False)[0], first)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(alone(layer, x.to(memory_format=torch.channels_last))[0], first)
    assert torch.equal(alone(layer, x.float())[0] != 0, first != 0)
    # A larger batch begins with the same masks, as padding does.
    assert torch.equal(alone(layer, torch.cat([x, x]))[0][:4], first)

    class Fused(nn.Module):
        """The operator that a GPU has."""

        def forward(self, x):
            return torch.native_dropout(x, 0.25, True)[0]

    torch.testing.assert_close(alone(Fused(), x)[0], first)


def test_a_step_that_goes_otherwise_has_the_masks_of_its_keys():
    """As where a phase calls a layer that another one does not, and sizes differ."""
    small, large = nn.Dropout(0.25), nn.Dropout(0.25)
    x, more = images(2, 3), images(4, 5)
    draws = LayerDraws([small, large])
    with draws.of(1, CPU, True):
        small(x), large(more)
    for own in (True, False):
        with draws.of(2, CPU, own):
            found = [small(x), small(x), large(more), large(more)]
        with LayerDraws([small, large]).of(2, CPU, own):
            wanted = [small(x), small(x), large(more), large(more)]
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a_stack_draws_what_its_clients_draw_alone(layer):
    """Some of them may be at other calls, and in another order."""
    x, seeds = images(3, 2, 4, 5, 5), (7, 8, 9)
    wanted = torch.stack([torch.stack(alone(layer, x[k], seeds[k], calls=2)) for k in range(3)])
    draws = StackedDraws([layer], seeds, CPU)
    for row in (torch.tensor([0, 1, 2]), torch.tensor([2, 0])):
        with draws.of(row):
            found = vmap(layer, randomness="different")(x[row])
        assert torch.equal(found, wanted[row, int(len(row) == 2)])


def test_a_stack_refuses_other_draws_and_eval_mode_draws_nothing():
    class Adds(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x) if self.training else x

    layer, x = Adds(), images(2, 3)
    with StackedDraws([layer], (1, 2), CPU).of(torch.arange(2)):
        with pytest.raises(RuntimeError, match="draws for one client at a time"):
            vmap(layer, randomness="different")(x)
        assert torch.equal(vmap(layer.eval())(x), x)
    assert not layer._forward_hooks


def test_a_scope_ends_with_an_error():
    class Fails(nn.Dropout):
        def forward(self, x):
            raise ValueError("as planned")

    layer = Fails()
    with pytest.raises(ValueError, match="as planned"), LayerDraws([layer]).of(1, CPU):
        layer(images(2))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_masks_made_ahead_are_those_of_their_keys():
    """Also of smaller batches, of a layer asked twice, and of a pass that is repeated."""
    first, second, rng = nn.Dropout(0.25), nn.Dropout(0.5), torch.Generator().manual_seed(5)

    def wanted(layer, x):
        mask = bernoulli(keys_of(rng), x.numel(), 1 - layer.p).view(x.shape)
        return x * mask.to(x.dtype).div_(1 - layer.p)

    draws, step = LayerDraws([first, second]), [(first, (4, 3)), (second, (4, 5))]
    asked = step * 3 + [(first, (2, 3)), (second, (2, 5)), (first, (6, 3)), (second, (6, 5))]
    asked += [(first, (4, 3)), (first, (4, 3)), (second, (4, 5)), *step, (second, (4, 5))]
    with draws.of(5, CPU, own=True):
        for layer, shape in asked:
            x = images(*shape)
            assert torch.equal(layer(x), wanted(layer, x))
    assert "forward" not in vars(first)


def test_a_checkpointed_layer_has_one_mask():
    layers = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5))
    draws, found = LayerDraws([layers[1], layers[3]]), []
    for step in range(3):
        for keep in (True, False):
            x = images(4, 6).float().requires_grad_()
            with draws.of(step, CPU):
                y = layers(x) if keep else checkpoint(layers, x, use_reentrant=False)
                found.append(torch.autograd.grad(y.sum(), x)[0])
        assert torch.equal(*found[-2:])


@pytest.mark.parametrize("first", [True, False])
def test_attention_is_torchs(first):
    class Own(nn.MultiheadAttention):
        """Which runs torch's own forward."""

    layer = nn.MultiheadAttention(6, 2, 0.3, batch_first=first, dtype=torch.float64)
    own = Own(6, 2, 0.3, batch_first=first, dtype=torch.float64)
    own.load_state_dict(layer.state_dict())
    x, found = images(3, 4, 6), []
    for one in (layer, own):
        with LayerDraws([one]).of(1, CPU, own=True):
            found.append([one(x, x, x, need_weights=False)[0] for _ in range(2)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_what_draws_in_its_own_forward_is_seen():
    class Draws(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, self.training)

    net = nn.Sequential(nn.Linear(3, 3), Draws(), nn.ReLU(), nn.Dropout(0.1))
    x = images(2, 3).float()
    assert watched(net, lambda: net(x)) == [net[1], net[3]]
    assert not any(part._forward_hooks for part in net)


def test_a_network_that_was_watched_is_free_at_once():
    """A copy is watched, which would take as much memory until Python looks for cycles."""
    gc.disable()
    try:
        net, x = nn.Sequential(nn.Linear(2, 2), nn.Dropout()), torch.ones(1, 2)
        held = weakref.ref(net[0].weight)
        watched(net, partial(net, x))
        del net
        assert held() is None
    finally:
        gc.enable()
