"""PFAKD: FedPer with the received backbone, frozen, as a teacher of features.

"Personalized Federated Learning with Feature Alignment via Knowledge Distillation"; released code
``PFAKD``, a fork of PFLlib, which does not run as published. What travels: the backbone, both ways.
What stays: the head; the teacher lives for the round.

Defaults follow the released code where it and the paper differ, but for the learning rate, which
stays constant (``lr_decay``), and the optimiser, which starts afresh each round
(``persist_optimizer``).
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from lightning_modules.base import ClientModule
from lightning_modules.layers import copy_into, frozen
from lightning_modules.losses import feature_distillation
from lightning_modules.nets import SplitNet
from pfl.core.checks import not_negative
from pfl.core.types import Batch, Broadcast, ClientInfo, Phase, Plan, Terms


class PFAKD(ClientModule):
    """``CE + beta * D(z, z_T)`` (Eq. 3) on backbone and head together.

    z and z_T, (B, D), are the features of the trained and of the received backbone for the same
    inputs. With beta = 0 it is FedPer. Before any broadcast there is no teacher: a plain Trainer
    minimises the cross-entropy alone.

    Args:
        net: Its backbone gives the features.
        distill_weight: beta.
        distill_reduction: D is the mean of the squared differences over samples and features
            (``mean``, the released code, for which beta = 1 was tuned), or their sum over features
            and mean over samples (``sum_dim``, Eq. 3 as printed; D times as large).
        teacher_mode: Whether the teacher's batch norms normalise with each batch's own statistics
            (``train``) or with running ones (``eval``; use it with ``buffers="average"``). With
            ``buffers="local"`` the running ones would be this client's, and the backbone others'.
        buffers: As in :class:`ClientModule`; the released code moves parameters only.
        options: See :class:`ClientModule`. ``weighting`` is ``samples`` in the
            released code, ``uniform`` in Algorithm 1.

    Raises:
        ValueError: ``distill_weight`` is negative.
    """

    shared = ("net.backbone.*",)
    kept = ("net.head.*",)
    vectorizable = True
    net: SplitNet

    def __init__(
        self,
        net: SplitNet,
        *,
        distill_weight: float = 1.0,
        distill_reduction: Literal["mean", "sum_dim"] = "mean",
        teacher_mode: Literal["train", "eval"] = "train",
        buffers: Literal["average", "local"] = "local",
        **options: Any,
    ) -> None:
        super().__init__(net, buffers=buffers, **options)
        not_negative(distill_weight=distill_weight)
        self.distill_weight = distill_weight
        self.distill_reduction: Literal["mean", "sum_dim"] = distill_reduction
        self.teacher = frozen(net.backbone, batch_statistics=teacher_mode == "train")

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Take in the backbone, and freeze a copy of it as the teacher."""
        super().receive(broadcast, info)
        copy_into(self.teacher, self.net.backbone)

    def plan(self) -> Plan:
        """Declare one phase, on all parameters."""
        return [Phase(name="local", objective=self._distilled, epochs=self.epochs)]

    def _distilled(self, batch: Batch) -> Terms:
        """Return ``ce``, and ``kd`` with its weight."""
        z = self.net.backbone(batch.x)
        terms = self.supervised(self.net.head(z), batch)
        if self.distill_weight:
            with torch.no_grad():
                target = self.teacher(batch.x)
            distance = feature_distillation(z, target, batch.weight, self.distill_reduction)
            terms["kd"] = self.distill_weight * distance
        return terms
