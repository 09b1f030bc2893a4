"""The networks of the papers, each split into backbone and head.

Every network is built from the number of classes and the shape of an image, (channels, height,
width), and refuses images that its convolutions cannot take. Numbers of parameters stand in the
docstrings, backbone + head. Those with normalisation layers are in ``parts.normalised_nets``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from lightning_modules.layers import VariationalLinear
from lightning_modules.nets.blocks import ImageShape, conv, linears, mean_over_image, output_size
from pfl.types import Patterns


class SplitNet(nn.Module):
    """A backbone that makes features, and a head that makes logits of them.

    Args:
        backbone: (B, ...) -> (B, D) features.
        head: (B, D) -> (B, C) logits.
        features: D; read from the first linear layer of the head if not given.
        num_classes: C; read from the last linear layer of the head if not given.

    Raises:
        ValueError: The head has no linear layer to read D or C from, or C is not positive.

    Example:
        >>> net = SplitNet(nn.Flatten(), nn.Linear(12, 5))
        >>> net.features, net.num_classes, net(Tensor(2, 3, 2, 2)).shape
        (12, 5, torch.Size([2, 5]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        features: int | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        linears = [m for m in head.modules() if isinstance(m, (nn.Linear, VariationalLinear))]
        if not linears and (features is None or num_classes is None):
            raise ValueError(
                f"the head {type(head).__name__} has no linear layer that tells the number of "
                "features and of classes; give both as features=... and num_classes=..."
            )
        self.backbone = backbone
        self.head = head
        self.features = linears[0].in_features if features is None else features
        self.num_classes = linears[-1].out_features if num_classes is None else num_classes
        if self.num_classes < 1:
            raise ValueError(f"num_classes must be positive, got {self.num_classes}")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) logits."""
        logits: Tensor = self.head(self.backbone(x))
        return logits


def last_layers(net: nn.Module, count: int, prefix: str = "") -> tuple[Patterns, Patterns]:
    """Patterns of the last ``count`` layers, and of the layers before them.

    A layer is a submodule with entries of its own in the state dict, in order of definition.

    Raises:
        ValueError: The network has fewer layers, or ``count`` is negative.

    Example:
        >>> last_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), 1)
        (('2.*',), ('0.*',))
    """
    layers = [
        name
        for name, module in net.named_modules()
        if any(True for _ in module.parameters(recurse=False))
        or any(True for _ in module.buffers(recurse=False))
    ]
    if not 0 <= count <= len(layers):
        raise ValueError(f"the network has {len(layers)} layers, {count} of them were asked for")
    patterns = [f"{prefix}{name}.*" if name else f"{prefix}*" for name in layers]
    split = len(patterns) - count
    return tuple(patterns[split:]), tuple(patterns[:split])


class MLP(SplitNet):
    """One hidden layer; pFedVEM's network for Fashion-MNIST.

    At 1x28x28 and C = 10: 78,500 + 1,010.

    Args:
        num_classes: C.
        input_shape: (channels, height, width).
        hidden: Width of the hidden layer. The paper does not give it; 100 is usual in the works it
            follows.
    """

    def __init__(
        self, num_classes: int, input_shape: ImageShape = (1, 28, 28), hidden: int = 100
    ) -> None:
        backbone = nn.Sequential(nn.Flatten(), *linears((math.prod(input_shape), hidden)))
        super().__init__(backbone, nn.Linear(hidden, num_classes))


class LeNet5(SplitNet):
    """Two convolutions 5x5, each with ReLU and 2x2 max-pooling, and a stack of linear layers.

    The defaults give LeNet-5: at 3x32x32 and C = 10 it has 61,156 + 850 = 62,006. The papers' own:

    - pFedVEM, CIFAR-10: ``channels: [16, 32]``, 120,332 + 850;
    - FedSimSup, inter-learning model: ``hidden: [120]``, in all 52,202 at C = 10, 63,092 at
      C = 100, and 40,914 at 1x28x28 and C = 62;
    - FedSimSup, supervisor, about a sixth of that: ``channels: [3, 6]`` with ``hidden: [48]``,
      8,422 at C = 10, or ``hidden: [40]``, 10,824 at C = 100, and 6,956 at 1x28x28 and C = 62.

    Args:
        num_classes: C.
        input_shape: (channels, height, width); at least 16x16.
        channels: Output channels of the two convolutions.
        hidden: Widths of the linear layers before the last; the last of them is D.

    Raises:
        ValueError: The image is too small, or ``hidden`` is empty.
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
        first, second = channels
        layers = [*conv(input_shape[0], first, 5), *conv(first, second, 5), nn.Flatten()]
        layers += linears((output_size(type(self), layers, input_shape), *hidden))
        super().__init__(nn.Sequential(*layers), nn.Linear(hidden[-1], num_classes))


class CNN2(LeNet5):
    """FedAS's network: the shape of LeNet-5, wider, with one hidden linear layer.

    At 3x32x32: 873,408 + 513 C.

    Args:
        num_classes: C.
        input_shape: (channels, height, width); at least 16x16.

    Raises:
        ValueError: The image is too small.
    """

    def __init__(self, num_classes: int, input_shape: ImageShape = (3, 32, 32)) -> None:
        super().__init__(num_classes, input_shape, channels=(32, 64), hidden=(512,))


class FashionCNN(SplitNet):
    """PFAKD's network for Fashion-MNIST: two convolutions 5x5 and two linear layers.

    At 1x28x28 and C = 10: 115,776 + 1,290, D = 128.

    Args:
        num_classes: C.
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
        num_classes: C.
        input_shape: (channels, height, width); at least 24x24.
        head_split: The head is the last linear layer (the paper), or both of them (the official
            code).

    Raises:
        ValueError: The image is too small.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: ImageShape = (3, 32, 32),
        head_split: Literal["last_fc", "fc_block"] = "last_fc",
    ) -> None:
        layers = [*conv(input_shape[0], 16, 3), *conv(16, 32, 4), *conv(32, 64, 3), nn.Flatten()]
        hidden = linears((output_size(type(self), layers, input_shape), 64))
        last = nn.Linear(64, num_classes)
        if head_split == "last_fc":
            super().__init__(nn.Sequential(*layers, *hidden), last)
        else:
            super().__init__(nn.Sequential(*layers), nn.Sequential(*hidden, last))


class CNN5(SplitNet):
    """pFedVEM's network for CIFAR-100 and SUN397: five convolutions 3x3 and one linear layer.

    The first four end in a max-pooling with padding 1 (sides 32, 17, 9, 5, 3), the fifth in the
    mean over the image, which is flattened from its second dimension on, so that a batch of one
    keeps its batch dimension. At three channels: 618,916 + 101 C, D = 100.

    Args:
        num_classes: C.
        input_shape: (channels, height, width); any size.
    """

    def __init__(self, num_classes: int, input_shape: ImageShape = (3, 32, 32)) -> None:
        channels = (input_shape[0], 32, 64, 128, 256)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(channels):
            layers += conv(inputs, outputs, 3, padding=1, pool_padding=1)
        layers += [nn.Conv2d(256, 100, 3, padding=1), nn.ReLU(), *mean_over_image()]
        super().__init__(nn.Sequential(*layers), nn.Linear(100, num_classes))


class Projected(SplitNet):
    """A network with MOON's projection head between its backbone and a new classifier.

    Li et al., "Model-Contrastive Federated Learning", CVPR 2021: linear D -> D, ReLU, linear
    D -> ``width``; the classifier reads the projection, and so does the contrastive term.

    Args:
        net: The network whose backbone is taken over.
        width: Size of the projection.

    Example:
        >>> Projected(MLP(10), width=64).features
        64
    """

    def __init__(self, net: SplitNet, width: int = 256) -> None:
        size = net.features
        projection = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, width))
        super().__init__(
            nn.Sequential(OrderedDict(encoder=net.backbone, projector=projection)),
            nn.Linear(width, net.num_classes),
        )
