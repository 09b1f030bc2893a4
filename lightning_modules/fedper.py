"""FedPer: shared body, private head, trained together.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818. There
is no released code. Departs from the paper: the average runs over the sampled clients, where the
paper lets all take part.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_modules.base import ClientModule
from lightning_modules.nets import last_layers


class FedPer(ClientModule):
    """The backbone travels, the head stays.

    Args:
        net: A ``SplitNet``.
        personal_layers: How many of the last layers stay; ``None`` keeps the head of the network.
        options: See :class:`ClientModule`.
    """

    shared = ("net.backbone.*",)
    kept = ("net.head.*",)
    vectorizable = True

    def __init__(
        self, net: nn.Module, *, personal_layers: int | None = None, **options: Any
    ) -> None:
        super().__init__(net, **options)
        if personal_layers is not None:
            self.kept, self.shared = last_layers(net, personal_layers, prefix="net.")
