"""PFAKD: FedPer whose features are distilled from the received backbone.

"Personalized Federated Learning with Feature Alignment via Knowledge Distillation"; released code
``PFAKD``, a fork of PFLlib, which does not run as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from lightning_modules import base as fl


class PFAKD(fl.ClientModule):
    """FedPer with distillation of features from the received backbone to the trained one.

    The objective is ``CE + beta * D(z, z_T)`` (Eq. 3), where z and z_T, both (B, D), are the
    features that the trained and the received backbone give for the same inputs. The received
    backbone is frozen as the teacher for the round. Backbone and head are trained together. The
    backbone travels both ways; the head stays. With beta = 0 it is FedPer. Before any broadcast
    there is no teacher: a plain Trainer minimises the cross-entropy alone.

    Defaults follow the released code where it differs from the paper, with two exceptions: the
    learning rate stays constant (``lr_decay``), and the optimiser starts afresh in each round
    (``persist_optimizer``).

    Args:
        net: A ``SplitNet``; its backbone gives the features.
        distill_weight: beta, the weight of the distillation.
        distill_reduction: D is the mean of the squared differences over samples and features
            (``mean``, the released code, for which beta = 1 was tuned), or their sum over features
            and mean over samples (``sum_dim``, Eq. 3 as printed, larger by the number of features).
        teacher_mode: Whether the teacher's batch norms use the statistics of each batch (``train``)
            or running statistics (``eval``, to be used with ``buffers="average"``). With
            ``buffers="local"`` the running statistics are this client's, but the teacher's weights
            are an average over clients.
        buffers: As in :class:`ClientModule`; the released code sends parameters only.
        options: See :class:`ClientModule`. ``weighting`` is ``samples`` in the released code and
            ``uniform`` in Algorithm 1.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: ``distill_weight`` is negative.
    """

    record = fl.MethodRecord(
        name="PFAKD",
        family="A part of the network stays with the client",
        travels="backbone",
        stays="head",
        apart="distils the features of the received backbone",
        paper=fl.Paper(
            "Personalized Federated Learning with Feature Alignment via Knowledge Distillation",
            "Qi, G. and Qu, Z. and Lyu, S.-H. and Jia, N. and Ye, B.",
            "PRICAI",
            2024,
            pages="121-133",
        ),
    )

    shared = ("net.backbone.*",)
    kept = ("net.head.*",)
    vectorizable = True
    needs = ("features", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        distill_weight: fl.NotNegative[float] = 1.0,
        distill_reduction: Literal["mean", "sum_dim"] = "mean",
        teacher_mode: Literal["train", "eval"] = "train",
        buffers: Literal["average", "local"] = "local",
        **options: Any,
    ) -> None:
        super().__init__(net, buffers=buffers, **options)
        self.distill_weight = distill_weight
        self.distill_reduction: Literal["mean", "sum_dim"] = distill_reduction
        self.teacher = fl.frozen(net.backbone, batch_statistics=teacher_mode == "train")

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return beta in the paper's range."""
        return (fl.Dimension("distill_weight", choices=(0.1, 0.5, 1.0, 5.0, 10.0)),)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the backbone, and freeze a copy of it as the teacher."""
        super().receive(broadcast, info)
        fl.copy_into(self.teacher, self.net.backbone)

    def plan(self) -> fl.Plan:
        """Declare one phase that trains all parameters."""
        return [fl.Phase(name="local", objective=self._distilled, epochs=self.epochs)]

    def _distilled(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the weighted ``kd``."""
        z = self.net.backbone(batch.x)
        terms = self.supervised(self.net.head(z), batch)
        if self.distill_weight:
            with torch.no_grad():
                target = self.teacher(batch.x)
            distance = fl.feature_distillation(z, target, batch.weight, self.distill_reduction)
            terms["kd"] = self.distill_weight * distance
        return terms
