"""FedBABU: federate the body under a fixed random head, fine-tune before the test.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022,
arXiv 2106.06042. The body travels, both ways; nothing stays. Departs from the official code: the
average is weighted by samples (``weighting: uniform`` is the code's; its clients are of equal
size), and learning rates do not fall by ten at half and at three quarters of the rounds.
"""

from __future__ import annotations

from typing import Any

from lightning_modules.finetune import FineTuned
from lightning_modules.freeze import Freeze
from lightning_modules.nets import SplitNet


class FedBABU(FineTuned, Freeze):
    """:class:`Freeze`, tested after fine-tuning; its global model is the one before fine-tuning.

    Args:
        net: A ``SplitNet``.
        ft_epochs: Epochs of fine-tuning; 5 is the official code's default.
        options: See :class:`FineTuned`, :class:`Freeze` and :class:`ClientModule`.
    """

    def __init__(self, net: SplitNet, *, ft_epochs: int = 5, **options: Any) -> None:
        super().__init__(net, ft_epochs=ft_epochs, **options)

    def ft_objective(self) -> None:
        """Return the plain cross-entropy."""
