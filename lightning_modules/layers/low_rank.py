"""A linear layer with a low-rank adaptation (LoRA)."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from pfl.method import at_least_one


class LowRankLinear(nn.Linear):
    """A linear layer plus a product of rank r, which starts at zero: ``x (W + B A)^T + b``.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, Eq. 3, with alpha =
    r. A is ``down``, (r, D_in), initialised like the weight of a linear layer; B is ``up``, (D_out,
    r), initialised to zero.

    Args:
        layer: The layer whose weight and bias are used.
        rank: r.

    Raises:
        ValueError: ``rank`` is below one.

    Example:
        >>> layer = nn.Linear(8, 5)
        >>> adapted = LowRankLinear(layer, rank=2)
        >>> x = Tensor([[1.0] * 8])
        >>> [tuple(p.shape) for p in adapted.parameters()], bool((adapted(x) == layer(x)).all())
        ([(5, 8), (5,), (2, 8), (5, 2)], True)
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        at_least_one(rank=rank)
        outputs, inputs = layer.weight.shape
        super().__init__(inputs, outputs, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.down = nn.Parameter(layer.weight.new_empty(rank, inputs))
        self.up = nn.Parameter(layer.weight.new_empty(outputs, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the product; the layer itself keeps its values."""
        # The base's constructor calls this before the product exists.
        if hasattr(self, "up"):
            nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
            nn.init.zeros_(self.up)

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, D_out) outputs of (B, D_in) inputs."""
        output: Tensor = super().forward(input)
        return output + F.linear(F.linear(input, self.down), self.up)
