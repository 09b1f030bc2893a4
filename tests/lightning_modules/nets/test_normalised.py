"""Networks with batch norm or group norm."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from lightning_modules.nets import CNN8, ResNet18
from tests.helpers.messages import refuses
from tests.helpers.stacking import check_stacked

CIFAR = (3, 32, 32)


@pytest.mark.parametrize("build", [CNN8, ResNet18])
def test_group_norm_replaces_every_batch_norm(build):
    net = build(10, norm="group")
    assert not list(net.buffers())
    groups = [module for module in net.modules() if isinstance(module, nn.GroupNorm)]
    assert groups
    assert all(module.num_channels // module.num_groups == 16 for module in groups)
    assert [p.shape for p in net.parameters()] == [p.shape for p in build(10).parameters()]
    # Group norm takes a batch of one in train mode, where batch norm fails.
    assert net.train()(torch.zeros(1, *((3, 96, 96) if build is CNN8 else CIFAR))).shape == (1, 10)


def test_group_norm_takes_any_width():
    assert CNN8(10, (3, 21, 21), "group", projector=100)(torch.zeros(1, 3, 21, 21)).shape == (1, 10)


def test_feature_maps_of_cnn8():
    """No padding; kernels 3, 1, 3, 3, 1, 3, 3, 1, with stride two in the third and the sixth."""
    x, sizes = torch.zeros(1, 3, 96, 96), []
    for layer in CNN8(10).eval().backbone:
        x = layer(x)
        sizes += [x.shape[-1]] if isinstance(layer, nn.Conv2d) else []
    assert sizes == [94, 94, 46, 44, 44, 21, 19, 19]


def test_first_stage_of_univarfls_resnet_halves_the_image():
    first = ResNet18(10, first_stride=2).backbone.layer1(torch.zeros(1, 64, 8, 8))
    assert first.shape == (1, 64, 4, 4)
    assert ResNet18(10).backbone.layer1(torch.zeros(1, 64, 8, 8)).shape == (1, 64, 8, 8)


def test_unknown_words_and_bad_sizes_are_refused():
    for build in (CNN8, ResNet18):
        refuses(partial(build, 10), "batch, group", norm="grp")
        refuses(partial(build, 10), "at least 1", projector=0)
    refuses(partial(ResNet18, 10), "1, 2", first_stride=3)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_stacked_clients_have_the_logits_and_statistics_of_each_alone(norm):
    check_stacked([CNN8(4, CIFAR, norm).double() for _ in range(2)], CIFAR)
