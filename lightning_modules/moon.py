"""MOON: FedAvg whose clients are pulled to the global representation, away from their previous one.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257. The whole network,
projection head included, travels both ways; the client's previous body stays. Departs from the
official code: at a client's first participation, whenever that is, its previous model is the
received one (the code has none in the first round only; either way that term has no gradient then);
one previous model is kept; frozen networks are in eval mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_modules.base import ClientModule
from lightning_modules.layers import copy_into, frozen
from lightning_modules.losses import model_contrastive
from lightning_modules.nets import Projected, SplitNet
from lightning_modules.nets.initial import seed_of
from pfl.core.checks import not_negative, positive
from pfl.core.seeds import derive, scoped
from pfl.core.types import Batch, Broadcast, ClientInfo, Pass, Phase, Plan, State, Terms, Totals


class MOON(ClientModule):
    """``CE + mu * l_con``, the contrast of the features that the head reads.

    Args:
        net: The network; its head is replaced if a projector comes before it.
        mu: Weight of the contrastive term (the authors: 5 on CIFAR-10, 1 on CIFAR-100, of {0.001,
            0.01, 0.1, 1, 5, 10}).
        tau: Temperature (the authors search {0.1, 0.5, 1}).
        projector: Put the authors' projection head between the body and a new classifier, both
            drawn from the network's own values; without it the contrast is of the body's features.
        out_dim: Width of the projection.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``mu`` is negative, or ``tau`` not positive.
    """

    kept = ("previous.*", "participated")
    vectorizable = True
    receives_global = True
    net: SplitNet
    participated: Tensor

    def __init__(
        self,
        net: SplitNet,
        *,
        mu: float = 1.0,
        tau: float = 0.5,
        projector: bool = True,
        out_dim: int = 256,
        **options: Any,
    ) -> None:
        not_negative(mu=mu)
        positive(tau=tau)
        if projector:
            with scoped(derive(seed_of(net), "projector")):
                net = Projected(net, out_dim)
        super().__init__(net, **options)
        self.mu = mu
        self.tau = tau
        self.received = frozen(net.backbone)
        self.previous = frozen(net.backbone)
        self.register_buffer("participated", torch.tensor(False))

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the network, and remember its body; it is the previous one for a newcomer."""
        super().receive(broadcast, info)
        copy_into(self.received, self.net.backbone)
        if not self.participated:
            copy_into(self.previous, self.net.backbone)
        self.participated.fill_(True)

    def plan(self) -> Plan:
        """Declare training, after which the trained body is the previous one."""
        return [
            Phase(name="local", objective=self.losses, epochs=self.epochs),
            Pass(name="remember", then=self._remember),
        ]

    def losses(self, batch: Batch) -> Terms:
        """Return ``ce`` and ``contrast``, weighted."""
        z = self.net.backbone(batch.x)
        with torch.no_grad():
            toward, away = self.received(batch.x), self.previous(batch.x)
        contrast = model_contrastive(z, toward, away, batch.weight, self.tau)
        return {
            **self.supervised(self.net.head(z), batch),
            "contrast": self.mu * contrast,
        }

    def _remember(self, totals: Totals) -> State:
        body = self.net.backbone.state_dict()
        return {f"previous.module.{name}": value for name, value in body.items()}
