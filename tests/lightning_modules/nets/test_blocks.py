"""Pieces of networks, and what they make of an image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from lightning_modules.nets.blocks import Conv2d, conv
from tests.helpers.draws import normal


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
