"""A classifier for sequences of tokens whose order matters."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_modules.nets.split import SplitNet
from pfl.method import AtLeastOne, check_arguments


class _LastState(nn.GRU):
    """A GRU that returns the last state of its last layer."""

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        """Return (B, H) states after (B, L, D) vectors."""
        _, states = super().forward(input)
        last: Tensor = states[-1]
        return last


class GRUNet(SplitNet):
    """An embedding of tokens, a GRU, and a linear head on its last state.

    Inputs are integer tokens, (B, L). LEAF's network for Shakespeare has this form, with an
    embedding of 8 and two layers of 256 LSTM units.

    Args:
        num_classes: C, or the number of outputs in another task.
        vocabulary: V, the number of tokens; ``None`` means C, as for prediction of the next token.
        embedding: Size of an embedding.
        hidden: Number of units, H.
        layers: Number of layers.

    Raises:
        ValueError: A size is below one.
    """

    def __init__(
        self,
        num_classes: int,
        vocabulary: AtLeastOne | None = None,
        embedding: AtLeastOne = 8,
        hidden: AtLeastOne = 64,
        layers: AtLeastOne = 1,
    ) -> None:
        check_arguments(self)
        tokens = num_classes if vocabulary is None else vocabulary
        super().__init__(
            nn.Sequential(
                nn.Embedding(tokens, embedding),
                _LastState(embedding, hidden, layers, batch_first=True),
            ),
            nn.Linear(hidden, num_classes),
        )
