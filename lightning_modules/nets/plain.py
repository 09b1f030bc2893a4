"""Networks without normalisation layers.

Every network is built from the number of classes and the shape of an input, (channels, height,
width) for images, and refuses images that are too small for its convolutions. The docstrings give
numbers of parameters as backbone + head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from lightning_modules.nets.blocks import (
    ImageShape,
    conv,
    linears,
    mean_over_image,
    output_size,
    widths,
)
from lightning_modules.nets.split import SplitNet
from pfl.method import AtLeastOne, at_least_one, check_arguments


class MLP(SplitNet):
    """Linear layers with ReLU; with one hidden layer, pFedVEM's network for Fashion-MNIST.

    At 1x28x28 and C = 10: 78,500 + 1,010. The input can have any shape, such as a table's row or an
    image; it is flattened.

    Args:
        num_classes: C, or the number of outputs in another task.
        input_shape: Shape of one sample, such as (channels, height, width) or (columns,).
        hidden: Width of the hidden layer, or a list of widths; an empty list gives a linear model.
            The paper does not give the width; 100 is usual in the works it follows.
        batch_norm: Whether to put batch norm before each ReLU.

    Raises:
        ValueError: A width is below one.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: tuple[int, ...] = (1, 28, 28),
        hidden: AtLeastOne | Sequence[int] = 100,
        batch_norm: bool = False,
    ) -> None:
        sizes = (math.prod(input_shape), *widths(hidden))
        super().__init__(
            nn.Sequential(nn.Flatten(), *linears(sizes, batch_norm)),
            nn.Linear(sizes[-1], num_classes),
        )


class LeNet5(SplitNet):
    """Two 5x5 convolutions, each with ReLU and 2x2 max-pooling, and a stack of linear layers.

    The defaults give LeNet-5: at 3x32x32 and C = 10 it has 61,156 + 850 = 62,006 parameters. The
    networks of the papers:

    - pFedVEM, CIFAR-10: ``channels: [16, 32]``, 120,332 + 850;
    - FedSimSup, inter-learning model: ``hidden: [120]``, in total 52,202 at C = 10, 63,092 at C =
      100, and 40,914 at 1x28x28 and C = 62;
    - FedSimSup, supervisor, about a sixth of that: ``channels: [3, 6]`` with ``hidden: [48]``,
      8,422 at C = 10, or ``hidden: [40]``, 10,824 at C = 100, and 6,956 at 1x28x28 and C = 62.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); at least 16x16.
        channels: Output channels of the two convolutions.
        hidden: Widths of the hidden linear layers; the last of them is D.

    Raises:
        ValueError: The image is too small, a width is below one, or ``hidden`` is empty.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: ImageShape = (3, 32, 32),
        channels: tuple[int, int] = (6, 16),
        hidden: Sequence[int] = (120, 84),
    ) -> None:
        if not hidden:
            raise ValueError("hidden must name the width of at least one linear layer, got none")
        at_least_one(channels=min(channels), hidden=min(hidden))
        first, second = channels
        layers = [*conv(input_shape[0], first, 5), *conv(first, second, 5), nn.Flatten()]
        layers += linears((output_size(type(self), layers, input_shape), *hidden))
        super().__init__(nn.Sequential(*layers), nn.Linear(hidden[-1], num_classes))


class CNN2(LeNet5):
    """FedAS's network: LeNet-5 with more channels and one wide hidden linear layer.

    At 3x32x32: 873,408 + 513 C.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); at least 16x16.

    Raises:
        ValueError: The image is too small.
    """

    def __init__(self, num_classes: int, input_shape: ImageShape = (3, 32, 32)) -> None:
        super().__init__(num_classes, input_shape, channels=(32, 64), hidden=(512,))


class FashionCNN(SplitNet):
    """PFAKD's network for Fashion-MNIST: two 5x5 convolutions and two linear layers.

    At 1x28x28 and C = 10: 115,776 + 1,290, D = 128.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); at least 12x12.

    Raises:
        ValueError: The image is too small.
    """

    def __init__(self, num_classes: int, input_shape: ImageShape = (1, 28, 28)) -> None:
        layers = [*conv(input_shape[0], 16, 5), *conv(16, 32, 5, padding=1), nn.Flatten()]
        layers += linears((output_size(type(self), layers, input_shape), 128))
        super().__init__(nn.Sequential(*layers), nn.Linear(128, num_classes))


class CNN3(SplitNet):
    """PFAKD's network for CIFAR-10: three convolutions and two linear layers.

    At 3x32x32 and C = 10: 43,616 + 650 with D = 64 for ``last_fc``, 27,168 + 17,098 with D = 256
    for ``fc_block``.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); at least 24x24.
        head_split: The head is the last linear layer (the paper), or both of them (the official
            code).

    Raises:
        ValueError: The image is too small, or ``head_split`` is unknown.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: ImageShape = (3, 32, 32),
        head_split: Literal["last_fc", "fc_block"] = "last_fc",
    ) -> None:
        check_arguments(self)
        layers = [*conv(input_shape[0], 16, 3), *conv(16, 32, 4), *conv(32, 64, 3), nn.Flatten()]
        hidden = linears((output_size(type(self), layers, input_shape), 64))
        last = nn.Linear(64, num_classes)
        if head_split == "last_fc":
            super().__init__(nn.Sequential(*layers, *hidden), last)
        else:
            super().__init__(nn.Sequential(*layers), nn.Sequential(*hidden, last))


class CNN5(SplitNet):
    """pFedVEM's network for CIFAR-100 and SUN397: five 3x3 convolutions and one linear layer.

    The first four convolutions are each followed by max-pooling with padding 1 (side lengths 32,
    17, 9, 5, 3), the fifth by the mean over the image, which keeps the batch dimension of a batch
    of one. With three channels: 618,916 + 101 C, D = 100.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); any size.
    """

    def __init__(self, num_classes: int, input_shape: ImageShape = (3, 32, 32)) -> None:
        channels = (input_shape[0], 32, 64, 128, 256)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(channels):
            layers += conv(inputs, outputs, 3, padding=1, pool_padding=1)
        layers += [nn.Conv2d(256, 100, 3, padding=1), nn.ReLU(), *mean_over_image()]
        super().__init__(nn.Sequential(*layers), nn.Linear(100, num_classes))
