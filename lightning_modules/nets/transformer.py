"""A small vision Transformer.

Dosovitskiy et al., "An Image Is Worth 16x16 Words", ICLR 2021, arXiv 2010.11929.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.nets.blocks import ImageShape
from lightning_modules.nets.split import SplitNet
from pfl.method import AtLeastOne, check_arguments


class ViT(SplitNet):
    """A Transformer on image patches, with a class token and learned positions.

    Its blocks are pre-norm: each has attention and an MLP. The defaults are a supervisor of
    FedSimSup: at 3x32x32 it has 74,432 + 65 C parameters, 75,082 at C = 10 and 80,932 at C = 100.

    Args:
        num_classes: Number of classes, C.
        input_shape: (channels, height, width); both sides are multiples of ``patch``.
        patch: Side of a patch, in pixels.
        width: Size of a token, D.
        blocks: Number of blocks.
        heads: Attention heads in each block; must divide ``width``.
        mlp: Width of the hidden layer in each block.
        checkpoint: File of pre-trained values, a state dict written by ``torch.save``. They are
            loaded into the backbone, which keeps them even if clients draw their own initial
            values; the head stays untrained, because its classes differ.

    Raises:
        ValueError: A size is below one, the sizes do not fit together, or the file does not fit the
            network.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: ImageShape = (3, 32, 32),
        patch: AtLeastOne = 4,
        width: AtLeastOne = 64,
        blocks: AtLeastOne = 2,
        heads: AtLeastOne = 4,
        mlp: AtLeastOne = 128,
        checkpoint: str | None = None,
    ) -> None:
        check_arguments(self)
        channels, height, breadth = input_shape
        if height % patch or breadth % patch:
            raise ValueError(
                f"ViT cannot cut images of {height}x{breadth} into patches of {patch}x{patch}"
            )
        if width % heads:
            raise ValueError(f"heads must divide width, got {heads} heads and a width of {width}")
        count = (height // patch) * (breadth // patch)
        layers: list[nn.Module] = [_Tokens(channels, patch, width, count)]
        layers += [_Block(width, heads, mlp) for _ in range(blocks)]
        backbone = nn.Sequential(*layers, nn.LayerNorm(width), _ClassToken())
        super().__init__(backbone, nn.Linear(width, num_classes))
        if checkpoint is not None:
            _load_backbone(self, Path(checkpoint))


class _Tokens(nn.Module):
    """(B, C, H, W) images -> (B, 1 + patches, D) tokens, the class token first."""

    def __init__(self, channels: int, patch: int, width: int, count: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + count, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.token, self.positions):
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        token = self.token.expand(len(patches), -1, -1)
        return torch.cat([token, patches], dim=1) + self.positions


class _Block(nn.Module):
    """Self-attention and an MLP, each with a layer norm before it and a residual connection."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, mlp), nn.GELU(), nn.Linear(mlp, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        projected = self.queries_keys_values(self.before_attention(x))
        # (B, N, 3 D) -> three of (B, heads, N, D / heads)
        parts = projected.unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(-3, -2)
        attended = F.scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.join(attended.transpose(-3, -2).flatten(-2))
        tokens: Tensor = x + self.mlp(x)
        return tokens


class _ClassToken(nn.Module):
    """(B, N, D) tokens -> (B, D), the first token of each image."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def _load_backbone(net: ViT, path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"checkpoint: there is no file {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        values = {name: value for name, value in state.items() if name.startswith("backbone.")}
        net.load_state_dict(values | {f"head.{n}": v for n, v in net.head.state_dict().items()})
    except Exception as error:
        raise ValueError(
            f"checkpoint: {path} does not fit this ViT; expected a state dict with the entries "
            f"backbone.*: {error}"
        ) from error
    net.backbone.pretrained = True  # type: ignore[assignment]
