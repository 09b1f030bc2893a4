"""Pieces of networks, and what they make of an image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from lightning_modules.nets.blocks import Conv2d, conv, linears, mean_over_image, output_size
from tests.helpers.draws import normal
from tests.helpers.messages import parts


def test_a_block_of_convolution_halves_the_image():
    """(8 - 3 + 2*1 + 1) / 2 = 4; without padding (8 - 3 + 1) / 2 = 3."""
    assert output_size(nn.Module, conv(2, 5, 3, padding=1), (2, 8, 8)) == 5 * 4 * 4
    assert output_size(nn.Module, conv(2, 5, 3), (2, 8, 8)) == 5 * 3 * 3


def test_a_convolution_computes_what_torchs_does():
    """From either layout, alone and under vmap, in values and slopes; float64."""
    ours, x = Conv2d(2, 5, 3).double(), normal(4, 2, 6, 6).requires_grad_()
    theirs = nn.Conv2d(2, 5, 3).double()
    theirs.load_state_dict(ours.state_dict())
    weight = ours.weight.detach()
    for images in (x, x.contiguous(memory_format=torch.channels_last)):
        for layer in (ours, theirs):
            layer(images).square().sum().backward()
        torch.testing.assert_close(ours(images), theirs(images))
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    parts = {"weight": torch.stack([weight, 2 * weight]), "bias": torch.zeros(2, 5).double()}
    together = vmap(lambda p: functional_call(ours, p, (x.detach(),)))(parts)
    torch.testing.assert_close(together[1], 2 * F.conv2d(x.detach(), weight))


def test_a_block_keeps_channels_innermost():
    """A layer that turned the images back would undo the gain."""
    maps = nn.Sequential(*conv(3, 8, 3), *conv(8, 4, 3))(torch.rand(2, 3, 14, 14))
    assert maps.is_contiguous(memory_format=torch.channels_last)


def test_linears_are_chained_with_relus():
    kinds = [(type(layer), getattr(layer, "out_features", 0)) for layer in linears((7, 4, 2))]
    assert kinds == [(nn.Linear, 4), (nn.ReLU, 0), (nn.Linear, 2), (nn.ReLU, 0)]


def test_the_mean_over_the_image_keeps_a_batch_of_one():
    pool = nn.Sequential(*mean_over_image())
    torch.testing.assert_close(pool(torch.arange(8.0).view(1, 2, 2, 2)), torch.tensor([[1.5, 5.5]]))


def test_an_image_too_small_is_told_with_the_least_size():
    """Two convolutions of 5 with pooling need 16 pixels: 16 -> 12 -> 6 -> 2 -> 1."""
    layers = [*conv(1, 2, 5), *conv(2, 2, 5)]
    with pytest.raises(ValueError, match=parts("Module ~ (1, 9, 9) ~ 1x16x16")):
        output_size(nn.Module, layers, (1, 9, 9))
