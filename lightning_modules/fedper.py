"""FedPer: a shared backbone and a private head, trained together.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818. There
is no released code.
"""

from __future__ import annotations

import torch
from torch import nn
from typing_extensions import Unpack

from lightning_modules.base import ClientModule, ClientOptions
from lightning_modules.nets import last_layers
from pfl.core.checks import not_negative
from pfl.core.types import Broadcast, ClientInfo, Patterns, Phase, Plan


class FedPer(ClientModule):
    """A shared backbone and a private head, trained together.

    The backbone travels both ways and is averaged; the head stays with the client and adapts the
    common features to its classes.

    Args:
        net: A ``SplitNet``.
        personal_layers: Number of last layers that stay; ``None`` keeps the network's head.
        fit_head_before_eval: Epochs for which a client that never took part trains its head before
            each test, on a copy and under the frozen backbone. Otherwise such a client is tested
            with the initial head.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: The network has fewer than ``personal_layers`` layers, or
            ``fit_head_before_eval`` is negative, or positive without a personal layer.
    """

    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        personal_layers: int | None = None,
        fit_head_before_eval: int = 0,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        not_negative(fit_head_before_eval=fit_head_before_eval)
        if fit_head_before_eval and personal_layers == 0:
            raise ValueError("fit_head_before_eval needs a personal layer: personal_layers is 0")
        parts: tuple[Patterns, Patterns] = ("net.head.*",), ("net.backbone.*",)
        if personal_layers is not None:
            parts = last_layers(net, personal_layers, prefix="net.")
        self.personal, self.body = parts
        self.fit_head_before_eval = fit_head_before_eval
        if fit_head_before_eval:
            self.participated = nn.Buffer(torch.tensor(False))

    @property
    def shared(self) -> Patterns:
        """The layers before the personal ones."""
        return self.body

    @property
    def kept(self) -> Patterns:
        """The personal layers; with ``fit_head_before_eval`` also whether the client took part."""
        return (*self.personal, "participated") if self.fit_head_before_eval else self.personal

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the backbone."""
        super().receive(broadcast, info)
        if self.fit_head_before_eval:
            self.participated.fill_(True)

    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Load the received backbone, under the client's own head."""
        if broadcast is not None:
            super().receive(broadcast, info)

    def adapt(self) -> Plan:
        """Declare training the head of clients that never took part, if the option says so."""
        if not self.fit_head_before_eval:
            return ()
        return [
            Phase(
                name="fit_head",
                objective=self.losses,
                epochs=lambda entries, info: (
                    0 if entries["participated"] else self.fit_head_before_eval
                ),
                trains=self.personal,
                evals=tuple(pattern.removesuffix(".*") for pattern in self.body),
            )
        ]
