"""A U-Net for images in two or three dimensions, with an output for each pixel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_modules.nets.split import SplitNet
from pfl.method import at_least_one


class UNet(SplitNet):
    """A small U-Net: Ronneberger et al., MICCAI 2015, arXiv 1505.04597, padded.

    The head is the last convolution, of 1x1 pixels; the backbone gives features of each pixel. At
    1x32x32, C = 2 and the defaults: 29,472 + 18.

    Args:
        num_classes: C, the number of outputs of each pixel.
        input_shape: (channels, height, width) or (channels, depth, height, width), each length a
            multiple of ``2 ** depth``.
        width: Channels of the first level; each level below has twice as many.
        depth: Number of times that the resolution is halved.
        batch_norm: Whether each convolution is followed by batch norm.

    Raises:
        ValueError: A number is below one, or a length cannot be halved so often.

    Example:
        >>> UNet(2, (1, 16, 16))(torch.zeros(3, 1, 16, 16)).shape
        torch.Size([3, 2, 16, 16])
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: Sequence[int] = (1, 32, 32),
        width: int = 8,
        depth: int = 2,
        batch_norm: bool = True,
    ) -> None:
        at_least_one(width=width, depth=depth)
        channels, *lengths = input_shape
        dimensions = len(lengths)
        if dimensions not in (2, 3) or any(length % 2**depth for length in lengths):
            raise ValueError(
                f"UNet halves height and width, and depth in three dimensions, {depth} times: give "
                f"images whose lengths are multiples of {2**depth}, got {tuple(input_shape)}"
            )
        backbone = _Level(channels, width, depth, dimensions, batch_norm)
        convolution = nn.Conv2d if dimensions == 2 else nn.Conv3d
        super().__init__(backbone, convolution(width, num_classes, 1), width, num_classes)


class _Level(nn.Module):
    """A resolution and those below it: (B, inputs, ...) images to (B, width, ...) features."""

    def __init__(
        self, inputs: int, width: int, below: int, dimensions: int, batch_norm: bool
    ) -> None:
        super().__init__()
        flat = dimensions == 2
        convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if flat else (nn.Conv3d, nn.BatchNorm3d)

        def twice(first: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for count in (first, width):
                layers.append(convolution(count, width, 3, padding=1, bias=not batch_norm))
                layers += [norm(width)] if batch_norm else []
                layers.append(nn.ReLU())
            return nn.Sequential(*layers)

        self.down = twice(inputs)
        self.below: nn.Module | None = None
        if below:
            self.halve = nn.MaxPool2d(2) if flat else nn.MaxPool3d(2)
            self.below = _Level(width, 2 * width, below - 1, dimensions, batch_norm)
            double = nn.ConvTranspose2d if flat else nn.ConvTranspose3d
            self.enlarge = double(2 * width, width, 2, stride=2)
            self.up = twice(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, width, ...) features."""
        z: Tensor = self.down(x)
        if self.below is None:
            return z
        lower = self.enlarge(self.below(self.halve(z)))
        features: Tensor = self.up(torch.cat([z, lower], dim=1))
        return features
