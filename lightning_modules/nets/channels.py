"""Division of a network by channels: the last ones of each layer are private, others shared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_modules.layers.mean_field import NORMALISATIONS
from pfl.method import State

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class ChannelDivision(NamedTuple):
    """How one entry of a state is divided: its end along one dimension is private.

    Attributes:
        dim: The dimension that is divided.
        channels: Number of channels along it.
        width: Number of positions that belong to one channel.
    """

    dim: int
    channels: int
    width: int

    @property
    def size(self) -> int:
        """Number of positions along ``dim``."""
        return self.channels * self.width

    def private(self, share: float) -> int:
        """Return the number of private positions, given the share of private channels.

        Example:
            >>> ChannelDivision(dim=0, channels=5, width=4).private(0.5)
            8
        """
        return math.floor(share * self.channels + 1e-9) * self.width

    def mask(self, private: Tensor | int, ndim: int) -> Tensor:
        """Return a mask, true where private: (..., 1, size, 1, ...) with ``ndim`` dimensions."""
        positions = torch.arange(self.size, device=getattr(private, "device", None))
        shape = [1] * ndim
        shape[self.dim] = self.size
        return (positions >= self.size - private).view(shape)


def divisions(net: nn.Module) -> dict[str, ChannelDivision]:
    """Return the division of each entry of a network's state, by name.

    A convolution or linear layer is divided by its output channels: all weights that produce a
    channel belong together, with its bias and its parameters and statistics in a normalisation
    layer. The classifier is the last linear layer. Its outputs are classes, so it is divided by its
    inputs, in the same way as the outputs of the layer before it. Its bias and all remaining
    entries are not divided.

    Raises:
        ValueError: There is no linear layer, or the number of its inputs is not a multiple of the
            channels of the layer before it.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2))
        >>> known = divisions(net)
        >>> known["0.weight"], known["2.weight"], known["2.bias"]  # 9 inputs per channel
        (ChannelDivision(dim=0, channels=4, width=1), ChannelDivision(dim=1, channels=4, width=9), \
ChannelDivision(dim=0, channels=1, width=2))
    """
    layers = {n: m for n, m in net.named_modules() if isinstance(m, (nn.Linear, *CONVOLUTIONS))}
    linears = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    if not linears:
        raise ValueError(f"{type(net).__name__} has no linear layer to classify with")
    known = {name: ChannelDivision(0, 1, len(v)) for name, v in net.state_dict().items() if v.dim()}
    before = 0
    for name, module in net.named_modules():
        if name == linears[-1]:
            known[f"{name}.weight"] = _by_inputs(name, layers[name].weight.shape[1], before)
        elif name in layers or isinstance(module, NORMALISATIONS):
            entries = (f"{name}.{entry}" for entry in module.state_dict())
            known |= {n: ChannelDivision(0, known[n].size, 1) for n in entries if n in known}
            before = len(layers[name].weight) if name in layers else before
    return known


def _by_inputs(name: str, inputs: int, channels: int) -> ChannelDivision:
    """Divide a classifier by the channels of the layer before it, or by inputs if there is none."""
    channels = channels or inputs
    if inputs % channels:
        raise ValueError(
            f"the classifier {name!r} has {inputs} inputs, which is not a multiple of the "
            f"{channels} channels of the layer before it"
        )
    return ChannelDivision(1, channels, inputs // channels)


def shared_part(state: Mapping[str, Tensor], private: Mapping[str, tuple[int, int]]) -> State:
    """Return copies of the entries without their private ends.

    Args:
        state: Whole entries.
        private: Dimension and number of private positions, by name of the entry.
    """
    return {
        name: value.narrow(dim, 0, value.shape[dim] - count).clone()
        for name, value in state.items()
        for dim, count in (private[name],)
    }


def paste(whole: Tensor, part: Tensor) -> None:
    """Overwrite the beginning of an entry with a part of it, in place."""
    whole[tuple(slice(0, size) for size in part.shape)].copy_(part)
