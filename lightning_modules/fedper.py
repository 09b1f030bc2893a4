"""FedPer: a shared backbone and a private head, trained together.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818. There
is no released code.
"""

from __future__ import annotations

from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedPer(fl.ClientModule):
    """A shared backbone and a private head, trained together.

    The backbone travels both ways and is averaged; the head stays with the client and adapts the
    common features to its classes.

    Args:
        net: A ``SplitNet``.
        personal_layers: Number of last layers that stay; ``None`` keeps the network's head.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: The network has fewer than ``personal_layers`` layers.
    """

    record = fl.MethodRecord(
        name="FedPer",
        family="A part of the network stays with the client",
        travels="backbone",
        stays="head",
        apart="backbone and head are trained together",
        paper=fl.Paper(
            "Federated Learning with Personalization Layers",
            (
                "Arivazhagan, Manoj Ghuhan and Aggarwal, Vinay and Singh, Aaditya Kumar and "
                "Choudhary, Sunav"
            ),
            "arXiv",
            2019,
            "https://arxiv.org/abs/1912.00818",
        ),
    )

    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        personal_layers: int | None = None,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        if personal_layers is None:
            self.needs = ("parts",)
        self.personal, self.body = fl.halves_of(net, personal_layers)

    @property
    def shared(self) -> fl.Patterns:
        """The layers before the personal ones."""
        return self.body

    @property
    def kept(self) -> fl.Patterns:
        """The personal layers."""
        return self.personal
