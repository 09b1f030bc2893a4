"""FedPer: shared body, private head, trained together.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818. The
body travels, both ways; the head stays. There is no released code. Departs from the paper: the
average runs over the sampled clients, where the paper lets all take part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.base import ClientModule
from lightning_modules.nets import last_layers
from pfl.core.checks import not_negative
from pfl.core.types import Broadcast, ClientInfo, Patterns, Phase, Plan


class FedPer(ClientModule):
    """The backbone travels, the head stays.

    Args:
        net: A ``SplitNet``.
        personal_layers: How many of the last layers stay; ``None`` keeps the head of the network.
        fit_head_before_eval: Epochs for which a client that never took part trains its head, on a
            copy and under the frozen body, before each test; otherwise its head is the initial one.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: The network has fewer than ``personal_layers`` layers, or
            ``fit_head_before_eval`` is negative.
    """

    vectorizable = True
    participated: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        personal_layers: int | None = None,
        fit_head_before_eval: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        not_negative(fit_head_before_eval=fit_head_before_eval)
        parts: tuple[Patterns, Patterns] = ("net.head.*",), ("net.backbone.*",)
        if personal_layers is not None:
            parts = last_layers(net, personal_layers, prefix="net.")
        self.personal, self.body = parts
        self.fit_head_before_eval = fit_head_before_eval
        if fit_head_before_eval:
            self.register_buffer("participated", torch.tensor(False))

    @property
    def shared(self) -> Patterns:
        """The layers before the personal ones."""
        return self.body

    @property
    def kept(self) -> Patterns:
        """The personal layers; with ``fit_head_before_eval`` also if the client took part."""
        return (*self.personal, "participated") if self.fit_head_before_eval else self.personal

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the body."""
        super().receive(broadcast, info)
        if self.fit_head_before_eval:
            self.participated.fill_(True)

    def personalise(self, broadcast: Broadcast | None, info: ClientInfo) -> None:
        """Load the received body under the client's own head."""
        if broadcast is not None:
            super().receive(broadcast, info)

    def adapt(self) -> Plan:
        """Declare training of the head for clients that never took part, if the options say so."""
        if not self.fit_head_before_eval:
            return ()
        return [
            Phase(
                name="fit_head",
                objective=self.losses,
                epochs=lambda own, info: 0 if own["participated"] else self.fit_head_before_eval,
                trains=self.personal,
                evals=tuple(pattern.removesuffix(".*") for pattern in self.body),
            )
        ]
