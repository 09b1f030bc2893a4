"""MOON: FedAvg whose features are pulled to the global model's and pushed from the previous one's.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from typing_extensions import Unpack

from lightning_modules.base import ClientModule, ClientOptions
from lightning_modules.layers import copy_into, frozen
from lightning_modules.losses import model_contrastive
from lightning_modules.nets import Projected, SplitNet
from lightning_modules.nets.initial import seed_of
from lightning_modules.nets.split import must_be_split
from lightning_modules.steps.phases import remember
from pfl.core.checks import at_least_one, not_negative, positive
from pfl.core.seeds import derive, scoped
from pfl.core.space import Dimension
from pfl.core.types import Batch, Broadcast, ClientInfo, Phase, Plan, Terms


class MOON(ClientModule):
    """FedAvg with a contrastive loss between the local, the global and the previous features.

    The objective is ``CE + mu * l_con``. The contrastive term l_con pulls the features that the
    head reads towards those of the received global model, and pushes them away from those of the
    client's own previous model. The whole network, projection head included, travels both ways; the
    backbone that the client last trained stays.

    Args:
        net: A ``SplitNet``; its head is replaced if a projector is put before it.
        mu: Weight of the contrastive term (the authors use 5 on CIFAR-10 and 1 on CIFAR-100, from
            {0.001, 0.01, 0.1, 1, 5, 10}).
        tau: Temperature (the authors search {0.1, 0.5, 1}).
        projector: Put the authors' projection head between the backbone and a new classifier; both
            are initialised with a seed derived from the network's initial values. Without it, the
            features of the backbone are contrasted.
        out_dim: Width of the projection.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    kept = ("previous.*", "participated")
    vectorizable = True
    one_model = True
    net: SplitNet

    def __init__(
        self,
        net: SplitNet,
        *,
        mu: float = 1.0,
        tau: float = 0.5,
        projector: bool = True,
        out_dim: int = 256,
        **options: Unpack[ClientOptions],
    ) -> None:
        must_be_split(net)
        not_negative(mu=mu)
        positive(tau=tau)
        at_least_one(out_dim=out_dim)
        if projector:
            with scoped(derive(seed_of(net), "projector")):
                net = Projected(net, out_dim)
        super().__init__(net, **options)
        self.mu = mu
        self.tau = tau
        self.received = frozen(net.backbone)
        self.previous = frozen(net.backbone)
        self.participated = nn.Buffer(torch.tensor(False))

    @classmethod
    def space(cls) -> Sequence[Dimension]:
        """Return weight, temperature and projector in the paper's ranges."""
        return (
            Dimension("mu", choices=(0.001, 0.01, 0.1, 1.0, 5.0, 10.0)),
            Dimension("tau", choices=(0.1, 0.5, 1.0)),
            Dimension("out_dim", choices=(64, 128, 256)),
        )

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the network and store its backbone, for a newcomer also as the previous one."""
        super().receive(broadcast, info)
        copy_into(self.received, self.net.backbone)
        if not self.participated:
            copy_into(self.previous, self.net.backbone)
        self.participated.fill_(True)

    def plan(self) -> Plan:
        """Declare training, and storing the trained backbone as the previous one."""
        return [
            Phase(name="local", objective=self.losses, epochs=self.epochs),
            remember(self.net.backbone, "previous"),
        ]

    def losses(self, batch: Batch) -> Terms:
        """Return ``ce`` and the weighted ``contrast``."""
        z = self.net.backbone(batch.x)
        with torch.no_grad():
            toward, away = self.received(batch.x), self.previous(batch.x)
        contrast = model_contrastive(z, toward, away, batch.weight, self.tau)
        return {**self.supervised(self.net.head(z), batch), "contrast": self.mu * contrast}
