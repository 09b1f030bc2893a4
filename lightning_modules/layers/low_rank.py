"""Layers with a low-rank adaptation (LoRA)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl.method import at_least_one


class LowRank(nn.Module):
    """A layer plus s times a product of rank r, which starts at zero: ``x (W + s B A)^T + b``.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, Eq. 3. A is
    ``down``, (r, D_in), drawn evenly up to ``1 / sqrt(D_in)``; B is ``up``, (D_out, r), initialised
    to zero. Of a convolution, D_in counts the weights of one output.

    Attributes:
        weight: W, of the layer.
        rank: r.
        scale: s, which is ``alpha / r``.
        dropout: Drops inputs of A in training; ``None`` drops none.
    """

    weight: Tensor
    bias: Any

    def adapt(self, layer: nn.Module, rank: int, alpha: float | None, dropout: float) -> None:
        """Take a layer's weights, and make the product.

        Args:
            layer: The layer.
            rank: r.
            alpha: r times s; ``None`` makes s one.
            dropout: Probability with which an input of A is dropped.

        Raises:
            ValueError: ``rank`` is below one.
        """
        at_least_one(rank=rank)
        given = cast(nn.Linear, layer)
        self.weight, self.bias = given.weight, given.bias
        self.rank, self.scale = rank, 1.0 if alpha is None else alpha / rank
        outputs, *inputs = self.weight.shape
        self.down = nn.Parameter(self.weight.new_empty(rank, *inputs))
        self.up = nn.Parameter(self.weight.new_empty(outputs, rank, *[1] * (len(inputs) - 1)))
        self.dropout = nn.Dropout(dropout) if dropout else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the product; the layer itself keeps its values."""
        # The base's constructor calls this before the product exists.
        if hasattr(self, "up"):
            nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
            nn.init.zeros_(self.up)

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's outputs, (B, ..., D_out), of (B, ..., D_in) inputs."""
        dropped = input if self.dropout is None else self.dropout(input)
        return self.base(input) + self.product(dropped) * self.scale

    def base(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer itself."""
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """Return ``x A^T B^T``."""
        return F.linear(F.linear(x, self.down), self.up)

    def cut(self, rank: int, alpha: float | None) -> None:
        """Keep the first r rows of A and columns of B, with another scale."""
        self.rank, self.scale = rank, 1.0 if alpha is None else alpha / rank
        self.down = nn.Parameter(self.down.detach()[:rank].clone())
        self.up = nn.Parameter(self.up.detach()[:, :rank].clone())


class LowRankLinear(LowRank, nn.Linear):
    """A linear layer with a low-rank product; see :class:`LowRank`.

    Args:
        layer: The layer whose weight and bias are used.
        rank: r.
        alpha: r times s; ``None`` makes s one.
        dropout: Probability with which an input of A is dropped.

    Raises:
        ValueError: ``rank`` is below one.

    Example:
        >>> layer = nn.Linear(8, 5)
        >>> adapted = LowRankLinear(layer, rank=2)
        >>> x = Tensor([[1.0] * 8])
        >>> [tuple(p.shape) for p in adapted.parameters()], bool((adapted(x) == layer(x)).all())
        ([(5, 8), (5,), (2, 8), (5, 2)], True)
    """

    def __init__(
        self, layer: nn.Linear, rank: int, alpha: float | None = None, dropout: float = 0.0
    ) -> None:
        outputs, inputs = layer.weight.shape
        super().__init__(inputs, outputs, layer.bias is not None, device="meta")
        self.adapt(layer, rank, alpha, dropout)

    def base(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer itself."""
        return F.linear(x, self.weight, self.bias)


class LowRankConv2d(LowRank, nn.Conv2d):
    """A convolution with a low-rank product, which is one of ``r`` channels and one of pixels.

    The arguments are those of :class:`LowRankLinear`; the layer has one group.
    """

    def __init__(
        self, layer: nn.Conv2d, rank: int, alpha: float | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__(
            layer.in_channels,
            layer.out_channels,
            cast("tuple[int, int]", layer.kernel_size),
            cast("tuple[int, int]", layer.stride),
            cast("str | tuple[int, int]", layer.padding),
            cast("tuple[int, int]", layer.dilation),
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,
            device="meta",
        )
        self.adapt(layer, rank, alpha, dropout)

    def base(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer itself."""
        outputs: Tensor = self._conv_forward(x, self.weight, self.bias)
        return outputs

    def product(self, x: Tensor) -> Tensor:
        """Return the product's outputs."""
        return F.conv2d(self._conv_forward(x, self.down, None), self.up)


class LowRankConv1D(LowRankLinear):
    """A ``Conv1D`` of transformers with a low-rank product: a linear layer, with W transposed.

    The arguments are those of :class:`LowRankLinear`.
    """

    def __init__(
        self, layer: nn.Module, rank: int, alpha: float | None = None, dropout: float = 0.0
    ) -> None:
        given = cast(nn.Linear, layer)
        # A view, so that the layer's own operation has its own memory.
        inputs, outputs = given.weight.shape
        turned = nn.Linear(inputs, outputs, device="meta")
        turned.weight, turned.bias = nn.Parameter(given.weight.detach().T), given.bias
        super().__init__(turned, rank, alpha, dropout)

    def base(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer itself."""
        rows = torch.addmm(cast(Tensor, self.bias), x.reshape(-1, x.shape[-1]), self.weight.T)
        return rows.view(*x.shape[:-1], len(self.weight))


def low_rank_kind(layer: nn.Module) -> Callable[..., LowRank] | None:
    """Return the class that adapts a layer; ``None`` if there is none.

    Only exactly the classes of torch and transformers count, as subclasses may use their weights
    differently.
    """
    kind = type(layer)
    if kind is nn.Linear:
        return LowRankLinear
    if kind is nn.Conv2d and layer.groups == 1:
        return LowRankConv2d
    named = f"{kind.__module__}.{kind.__name__}"
    return LowRankConv1D if named == "transformers.pytorch_utils.Conv1D" else None
