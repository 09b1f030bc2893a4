"""Building blocks of the networks, and the size of their output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl.method import at_least_one

ImageShape: TypeAlias = tuple[int, int, int]


class Conv2d(nn.Conv2d):
    """A convolution that computes in channels-last layout on a CPU.

    Parameters, initial values and, up to rounding, results are those of ``torch.nn.Conv2d``. The
    layers that follow keep the layout, in which convolutions and especially pooling are faster;
    docs/performance.md has the numbers. A feature map in this layout can be flattened and reshaped,
    but ``view`` cannot flatten it.

    Example:
        >>> conv = Conv2d(3, 8, 5)
        >>> conv(torch.rand(2, 3, 12, 12)).is_contiguous(memory_format=torch.channels_last)
        True
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., C, H, W) feature maps."""
        if x.device.type == "cpu":
            # Moving axes works under vmap, and copies nothing if the layout is channels-last
            # already.
            x = x.movedim(-3, -1).contiguous().movedim(-1, -3)
        return super().forward(x)


def conv(
    inputs: int, outputs: int, kernel: int, padding: int = 0, pool_padding: int = 0
) -> list[nn.Module]:
    """Return a convolution, a ReLU and a 2x2 max-pooling."""
    layer = Conv2d(inputs, outputs, kernel, padding=padding)
    return [layer, nn.ReLU(), nn.MaxPool2d(2, padding=pool_padding)]


def linears(sizes: Sequence[int], batch_norm: bool = False) -> list[nn.Module]:
    """Return a linear layer, optional batch norm and a ReLU from each size to the next."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        norm = [nn.BatchNorm1d(outputs)] if batch_norm else []
        layers += [nn.Linear(inputs, outputs), *norm, nn.ReLU()]
    return layers


def widths(hidden: int | Sequence[int]) -> tuple[int, ...]:
    """Return the widths of hidden layers as a tuple; a single width may be given as a number.

    Raises:
        ValueError: A width is below one.
    """
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    at_least_one(hidden=min(widths, default=None))
    return widths


def mean_over_image() -> list[nn.Module]:
    """Return global average pooling to (B, channels), which also works for a batch of one."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def output_size(kind: type[nn.Module], layers: Sequence[nn.Module], shape: ImageShape) -> int:
    """Compute the number of output values of ``layers`` for one image.

    Raises:
        ValueError: The image is too small for the layers.
    """
    net = nn.Sequential(*layers)
    size = _size_or_none(net, shape)
    if size is not None:
        return size
    channels, *_ = shape
    least = next((n for n in range(1, 129) if _size_or_none(net, (channels, n, n))), None)
    needed = f"; it needs at least {channels}x{least}x{least}" if least else ""
    raise ValueError(
        f"{kind.__name__} cannot take images of shape {tuple(shape)} "
        f"(channels, height, width){needed}"
    )


@torch.no_grad()
def _size_or_none(net: nn.Module, shape: ImageShape) -> int | None:
    # Batch norms write to the state, so it is copied. The meta device is no alternative: up to
    # torch 2.11 its pooling accepts images that are too small.
    state = {name: value.clone() for name, value in net.state_dict().items()}
    try:
        output: Tensor = functional_call(net, state, torch.zeros(2, *shape))
    except RuntimeError:
        return None
    return output[0].numel()
