"""A classifier for tokenised texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from lightning_modules.nets.blocks import linears, widths
from lightning_modules.nets.split import SplitNet
from pfl.method import AtLeastOne, check_arguments

PADDING = 0


class MeanEmbedding(nn.Embedding):
    """The mean of the embeddings of a text's tokens, in which token 0, the padding, does not count.

    Example:
        >>> layer = MeanEmbedding(5, 3)
        >>> text = Tensor([[4, 2]]).long()
        >>> bool((layer(text) == layer(nn.functional.pad(text, (0, 3)))).all())
        True
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, D) means, zero for a text that is all padding.

        Args:
            input: (B, L) integer tokens.
        """
        vectors = super().forward(input)
        real = (input != PADDING).to(vectors.dtype).unsqueeze(-1)
        # Zeros at the end leave the sum bitwise unchanged.
        total: Tensor = (vectors * real).sum(-2)
        return total / real.sum(-2).clamp_min(1)


class TextNet(SplitNet):
    """The mean of a text's token embeddings, followed by linear layers with ReLU.

    Inputs are integer tokens, (B, L), with 0 for padding. The amount of padding does not change the
    logits.

    Args:
        num_classes: C, or the number of outputs in another task.
        vocabulary: V, the number of tokens including the padding; tokens are 0 to V - 1.
        embedding: Size of an embedding.
        hidden: Width of the hidden layer, or a list of widths, possibly empty.

    Raises:
        ValueError: A size is below one.
    """

    def __init__(
        self,
        num_classes: int,
        vocabulary: AtLeastOne,
        embedding: AtLeastOne = 64,
        hidden: int | Sequence[int] = 64,
    ) -> None:
        check_arguments(self)
        sizes = (embedding, *widths(hidden))
        layers = OrderedDict[str, nn.Module](
            embedding=MeanEmbedding(vocabulary, embedding), layers=nn.Sequential(*linears(sizes))
        )
        super().__init__(nn.Sequential(layers), nn.Linear(sizes[-1], num_classes))
