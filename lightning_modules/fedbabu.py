"""FedBABU: train the backbone under a fixed random head, and fine-tune before the test.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022,
arXiv 2106.06042.
"""

from __future__ import annotations

from typing import Any

from lightning_modules import base as fl
from lightning_modules.finetune import FineTuned
from lightning_modules.freeze import Freeze


class FedBABU(FineTuned, Freeze):
    """A backbone trained under a fixed random head, and fine-tuned by each client before the test.

    Training is that of :class:`Freeze`: the backbone travels both ways, and nothing stays with the
    client, as the head is the same constant everywhere. Each client is tested with a fine-tuned
    copy, which is then discarded; the global model is tested without fine-tuning.

    Args:
        net: A ``SplitNet``.
        ft_epochs: Epochs of fine-tuning (5 in the official code).
        options: See :class:`FineTuned`, :class:`Freeze` and :class:`ClientModule`.
    """

    record = fl.MethodRecord(
        name="FedBABU",
        family="A part of the network stays with the client",
        travels="backbone",
        apart="the head is fixed in training and fine-tuned before the test",
        paper=fl.Paper(
            "{FedBABU}: Toward Enhanced Representation for Federated Image Classification",
            "Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young",
            "ICLR",
            2022,
            "https://arxiv.org/abs/2106.06042",
        ),
    )

    def __init__(self, net: fl.SplitNet, *, ft_epochs: int = 5, **options: Any) -> None:
        super().__init__(net, ft_epochs=ft_epochs, **options)

    def ft_objective(self) -> None:
        """Return ``None``, plain cross-entropy."""
