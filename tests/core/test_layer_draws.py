"""Dropout's masks: the same alone and in a stack, in every layout, precision and kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap

from pfl.core.layer_draws import layer_draws
from pfl.engines.stack.draws import StackedDraws

CPU = torch.device("cpu")
LAYERS = (nn.Dropout(0.3), nn.Dropout2d(0.3), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3))


def alone(layer, x, seed=1, own=True, calls=1):
    with layer_draws([layer], seed, CPU, own):
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
    with pytest.raises(ValueError, match="as planned"), layer_draws([layer], 1, CPU):
        layer(images(2))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
