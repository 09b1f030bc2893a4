"""Networks with normalisation layers: UniVarFL's small CNN and ResNet-18.

``norm`` chooses batch norm, as in the papers, or group norm, which has no running statistics.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Literal, TypeAlias

from torch import nn
from torchvision.models.resnet import BasicBlock

from lightning_modules.nets.blocks import Conv2d, ImageShape, mean_over_image, output_size
from lightning_modules.nets.split import SplitNet
from pfl.method import AtLeastOne, check_arguments

Norm: TypeAlias = Literal["batch", "group"]


class CNN8(SplitNet):
    """UniVarFL's small network: eight convolutions and a two-layer projector, all normalised.

    The layers are those in the public code of FedUV (CVPR 2024), whose experiments the paper
    follows. With three channels and C = 10 it has 159,024 + 2,570 parameters (backbone + head) and
    1,664 running statistics.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); at least 21x21.
        norm: Batch norm (the paper), or group norm with 16 channels per group.
        projector: Width of the projector, D.

    Raises:
        ValueError: The image is too small, ``norm`` is unknown, or ``projector`` is below one.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: ImageShape = (3, 96, 96),
        norm: Norm = "batch",
        projector: AtLeastOne = 256,
    ) -> None:
        check_arguments(self)
        # (output channels, kernel, stride)
        plan = [(16, 3, 1), (16, 1, 1), (32, 3, 2), (32, 3, 1), (32, 1, 1), (64, 3, 2), (64, 3, 1)]
        layers: list[nn.Module] = []
        inputs = input_shape[0]
        for outputs, kernel, stride in [*plan, (64, 1, 1)]:
            layer = Conv2d(inputs, outputs, kernel, stride, bias=False)
            layers += [layer, _norm2d(outputs, norm), nn.ReLU()]
            inputs = outputs
        layers += mean_over_image()
        output_size(type(self), layers, input_shape)
        backbone = nn.Sequential(*layers, *_projector_layers(inputs, projector, norm))
        super().__init__(backbone, nn.Linear(projector, num_classes))


class ResNet18(SplitNet):
    """ResNet-18 with a 3x3 stem of stride one and no max-pooling.

    He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, with the initialisation of
    the paper. Parameters with three channels (backbone + head):

    - PFAKD, CIFAR-100: the defaults, 11,168,832 + 513 C, D = 512. The mean over the image replaces
      the official code's 4x4 average pooling, which is the same for 32x32 images;
    - UniVarFL: ``first_stride: 2`` (stride two in the first block of all four stages) with
      ``projector: 512``, 11,700,416 + 513 C.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); any size.
        norm: Batch norm (the papers), or group norm with 16 channels per group.
        first_stride: Stride of the first stage.
        projector: Width of a two-layer projector after the pooling, D; ``None`` for none.

    Raises:
        ValueError: ``norm`` or the stride is unknown, or ``projector`` is below one.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: ImageShape = (3, 32, 32),
        norm: Norm = "batch",
        first_stride: Literal[1, 2] = 1,
        projector: AtLeastOne | None = None,
    ) -> None:
        check_arguments(self)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False),
            bn1=_norm2d(64, norm),
            relu=nn.ReLU(),
            layer1=_stage(64, 64, first_stride, norm),
            layer2=_stage(64, 128, 2, norm),
            layer3=_stage(128, 256, 2, norm),
            layer4=_stage(256, 512, 2, norm),
            pool=nn.Sequential(*mean_over_image()),
        )
        for stage in layers.values():
            for module in stage.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if projector is not None:
            layers["projector"] = nn.Sequential(*_projector_layers(512, projector, norm))
        super().__init__(nn.Sequential(layers), nn.Linear(projector or 512, num_classes))


def _norm2d(channels: int, norm: Norm) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else _group_norm(channels)


def _group_norm(channels: int) -> nn.GroupNorm:
    """Return a group norm with 16 channels per group, or more if 16 is not a divisor."""
    return nn.GroupNorm(math.gcd(channels, max(1, channels // 16)), channels)


def _projector_layers(inputs: int, width: int, norm: Norm) -> list[nn.Module]:
    """Return UniVarFL's projector: linear, norm and ReLU, twice."""
    layers: list[nn.Module] = []
    for size in (inputs, width):
        normalise = nn.BatchNorm1d(width) if norm == "batch" else _group_norm(width)
        layers += [nn.Linear(size, width), normalise, nn.ReLU()]
    return layers


def _stage(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential:
    """Return two basic blocks; the first has the stride, and a 1x1 convolution in its shortcut."""

    def normalise(channels: int) -> nn.Module:
        return _norm2d(channels, norm)

    shortcut = None
    if stride != 1 or inputs != outputs:
        conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        shortcut = nn.Sequential(conv, normalise(outputs))
    return nn.Sequential(
        BasicBlock(inputs, outputs, stride, shortcut, norm_layer=normalise),
        BasicBlock(outputs, outputs, norm_layer=normalise),
    )
