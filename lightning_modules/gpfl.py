"""GPFL: one backbone, a generic route guided by class embeddings, and a personal route.

Zhang et al., "GPFL: Simultaneously Learning Global and Personalized Feature Information for
Personalized Federated Learning", ICCV 2023, arXiv 2308.10279; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Unpack

from lightning_modules import base as fl


class GPFL(fl.ClientModule):
    """One backbone with a generic route, guided by class embeddings, and a personal route.

    A conditional valve (CoV) transforms the features f of the backbone, given a condition. On the
    personal route the head classifies ``CoV(f, u_i)``; on the generic route ``CoV(f, g)`` is pulled
    towards the embedding of its class, by angle and by the distance of the whole batch at once, as
    in the released code (in the paper, by the mean distance over samples). The conditions ``g = 1/C
    sum_y E_y`` and ``u_i = sum_y q_i(y) E_y``, where q_i are the client's class shares and E the
    class embeddings (GCE), are constant during a round. Before any broadcast all classes have the
    same share. Backbone, embeddings and valve travel both ways; the head stays.

    Args:
        net: A ``SplitNet``; its head reads D features, and embeddings have the same size.
        magnitude_weight: lambda, the strength of the distance term. The authors use 0.01 for small
            networks and 1e-4 for ResNet-18; PFAKD uses 0.01, and 1e-4 for CIFAR-100.
        guide_decay: mu, the weight decay of embeddings and valve, in place of the optimiser's. The
            authors use 0.1 for small networks and 0 for ResNet-18; PFAKD uses 0.1.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="GPFL",
        family="A part of the network stays with the client",
        travels="backbone, embeddings, valve",
        stays="head",
        apart="a global and a personal route through one backbone",
        paper=fl.Paper(
            (
                "{GPFL}: Simultaneously Learning Global and Personalized Feature Information "
                "for Personalized Federated Learning"
            ),
            (
                "Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui "
                "and Ma, Ruhui and Cao, Jian and Guan, Haibing"
            ),
            "ICCV",
            2023,
            "https://arxiv.org/abs/2308.10279",
        ),
    )

    shared = ("net.backbone.*", "embeddings", "valve.*")
    kept = ("net.head.*",)
    vectorizable = True
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        magnitude_weight: fl.NotNegative[float] = 0.01,
        guide_decay: fl.NotNegative[float] = 0.1,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.magnitude_weight = magnitude_weight
        self.guide_decay = guide_decay
        with fl.scoped(fl.derive(fl.seed_of(net), "gpfl")):
            self.embeddings = nn.Parameter(torch.randn(net.num_classes, net.features))
            self.valve = fl.ConditionalValve(net.features)
        table = self.embeddings.detach()
        mean = table.mean(0)
        self.received = nn.Buffer(table.clone())
        self.class_shares = nn.Buffer(torch.full((net.num_classes,), 1 / net.num_classes))
        self.generic = nn.Buffer(mean.clone())
        self.personal = nn.Buffer(mean.clone())

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda and mu in the authors' range."""
        return (
            fl.Dimension("magnitude_weight", choices=(0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0)),
            fl.Dimension("guide_decay", choices=(0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0)),
        )

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the shared entries, and compute the constants of the round."""
        super().receive(broadcast, info)
        self.received.copy_(self.embeddings)
        self.class_shares.copy_(info.class_counts / max(1, info.samples))
        for name, value in self._conditions().items():
            getattr(self, name).copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the personal route."""
        logits: Tensor = self.net.head(self.valve(self.net.backbone(x), self.personal))
        return logits

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` of the personal route; ``angular`` and ``magnitude`` of the generic one."""
        z = self.net.backbone(batch.x)
        logits = self.net.head(self.valve(z, self.personal))
        generic = self.valve(z, self.generic)
        distance = fl.magnitude(generic, batch.y, self.received, batch.weight)
        return {
            **self.supervised(logits, batch),
            "angular": fl.angular(generic, batch.y, self.embeddings, batch.weight),
            "magnitude": self.magnitude_weight * distance,
        }

    def configure_optimizers(self) -> Optimizer:
        """Return the optimiser, in which embeddings and valve have their own weight decay."""
        trained = [(n, p) for n, p in self.named_parameters() if p.requires_grad]
        optimizer = self.optimizer(p for n, p in trained if n.startswith("net."))
        guides = [p for n, p in trained if not n.startswith("net.")]
        optimizer.add_param_group({"params": guides, "weight_decay": self.guide_decay})
        return optimizer

    def _conditions(self) -> fl.State:
        """Return the conditions g and u_i of the current embeddings."""
        return {"generic": self.embeddings.mean(0), "personal": self.class_shares @ self.embeddings}
