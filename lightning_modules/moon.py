"""MOON: FedAvg whose features are pulled to the global model's and pushed from the previous one's.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class MOON(fl.ClientModule):
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

    record = fl.MethodRecord(
        name="MOON",
        family="One model for all, and where to tune it",
        travels="network",
        stays="last network",
        apart="a contrastive loss between representations",
        paper=fl.Paper(
            "Model-Contrastive Federated Learning",
            "Li, Qinbin and He, Bingsheng and Song, Dawn",
            "CVPR",
            2021,
            "https://arxiv.org/abs/2103.16257",
        ),
    )

    kept = ("previous.*", "participated")
    vectorizable = True
    needs = ("features", "parts", "outputs")
    one_model = True
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        mu: fl.NotNegative[float] = 1.0,
        tau: fl.Positive[float] = 0.5,
        projector: bool = True,
        out_dim: fl.AtLeastOne = 256,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        if projector:
            with fl.scoped(fl.derive(fl.seed_of(net), "projector")):
                self.net = net = fl.Projected(net, out_dim)
        self.mu = mu
        self.tau = tau
        self.received = fl.frozen(net.backbone)
        self.previous = fl.frozen(net.backbone)
        self.participated = nn.Buffer(torch.tensor(False))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return weight, temperature and projector in the paper's ranges."""
        return (
            fl.Dimension("mu", choices=(0.001, 0.01, 0.1, 1.0, 5.0, 10.0)),
            fl.Dimension("tau", choices=(0.1, 0.5, 1.0)),
            fl.Dimension("out_dim", choices=(64, 128, 256)),
        )

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the network and store its backbone, for a newcomer also as the previous one."""
        super().receive(broadcast, info)
        fl.copy_into(self.received, self.net.backbone)
        if not self.participated:
            fl.copy_into(self.previous, self.net.backbone)
        self.participated.fill_(True)

    def plan(self) -> fl.Plan:
        """Declare training, and storing the trained backbone as the previous one."""
        return [
            fl.Phase(name="local", objective=self.losses, epochs=self.epochs),
            fl.remember(self.net.backbone, "previous"),
        ]

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the weighted ``contrast``."""
        z = self.net.backbone(batch.x)
        with torch.no_grad():
            toward, away = self.received(batch.x), self.previous(batch.x)
        contrast = fl.model_contrastive(z, toward, away, batch.weight, self.tau)
        return {**self.supervised(self.net.head(z), batch), "contrast": self.mu * contrast}
