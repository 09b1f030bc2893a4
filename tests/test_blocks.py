"""Pieces of networks, and what they make of an image."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.parts.blocks import conv, linears, mean_over_image, output_size


def test_a_block_of_convolution_halves_the_image():
    """(8 - 3 + 2*1 + 1) / 2 = 4; without padding (8 - 3 + 1) / 2 = 3."""
    assert output_size(nn.Module, conv(2, 5, 3, padding=1), (2, 8, 8)) == 5 * 4 * 4
    assert output_size(nn.Module, conv(2, 5, 3), (2, 8, 8)) == 5 * 3 * 3


def test_linears_are_chained_with_relus():
    kinds = [(type(layer), getattr(layer, "out_features", 0)) for layer in linears((7, 4, 2))]
    assert kinds == [(nn.Linear, 4), (nn.ReLU, 0), (nn.Linear, 2), (nn.ReLU, 0)]


def test_the_mean_over_the_image_keeps_a_batch_of_one():
    pool = nn.Sequential(*mean_over_image())
    torch.testing.assert_close(pool(torch.arange(8.0).view(1, 2, 2, 2)), torch.tensor([[1.5, 5.5]]))


def test_an_image_too_small_is_told_with_the_least_size():
    """Two convolutions of 5 with pooling need 16 pixels: 16 -> 12 -> 6 -> 2 -> 1."""
    layers = [*conv(1, 2, 5), *conv(2, 2, 5)]
    with pytest.raises(
        ValueError, match=r"Module cannot take images of shape \(1, 9, 9\).*1x16x16"
    ):
        output_size(nn.Module, layers, (1, 9, 9))
