"""The networks of the papers, each split into backbone and head."""

from __future__ import annotations

from torch import Tensor, nn

from pfl.types import Patterns


class SplitNet(nn.Module):
    """A backbone that makes features, and a head that makes logits of them.

    Args:
        backbone: (B, ...) -> (B, D) features.
        head: (B, D) -> (B, C) logits.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) logits."""
        logits: Tensor = self.head(self.backbone(x))
        return logits


def last_layers(net: nn.Module, count: int, prefix: str = "") -> tuple[Patterns, Patterns]:
    """Patterns of the last ``count`` layers, and of the layers before them.

    A layer is a submodule with entries of its own in the state dict, in order of definition.

    Raises:
        ValueError: The network has fewer layers, or ``count`` is negative.
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


class CNN2(SplitNet):
    """The network of FedAvg and FedAS: two convolutions 5x5 and two linear layers.

    At 3x32x32: backbone 873,408 parameters, head 513 C (FedAS card, section 8).

    Args:
        num_classes: C.
        input_shape: (channels, height, width).
    """

    def __init__(
        self, num_classes: int, input_shape: tuple[int, int, int] = (3, 32, 32)
    ) -> None:
        channels, height, width = input_shape
        size = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        super().__init__(
            nn.Sequential(
                nn.Conv2d(channels, 32, 5),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(32, 64, 5),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(64 * size[0] * size[1], 512),
                nn.ReLU(),
            ),
            nn.Linear(512, num_classes),
        )


class MLP(SplitNet):
    """One hidden layer: flatten, linear, ReLU, linear.

    Args:
        num_classes: C.
        input_shape: (channels, height, width).
        hidden: Width of the hidden layer.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: tuple[int, int, int] = (1, 28, 28),
        hidden: int = 100,
    ) -> None:
        channels, height, width = input_shape
        super().__init__(
            nn.Sequential(
                nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()
            ),
            nn.Linear(hidden, num_classes),
        )
