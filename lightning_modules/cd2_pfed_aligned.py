"""CD2-pFed with FedAS's parameter alignment on top.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, Fig. 6b and the last
paragraph of section 3.2: where features need private weights too, the target is the embedding that
the client's whole last model gives, and what is aligned is the newly assembled model. Neither paper
gives settings; see ``cd2_pfed`` for what is ours there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_modules.cd2_pfed import CD2PFed
from lightning_modules.layers import frozen
from lightning_modules.nets import SplitNet
from lightning_modules.steps.alignment import (
    Alignment,
    AlignTarget,
    alignment_parts,
    remember_backbone,
)
from pfl.core.types import Plan


class CD2PFedAligned(CD2PFed):
    """CD2-pFed whose clients align the backbone that they assemble, before they train it.

    Args:
        net: Its backbone gives the features (B, D).
        align_target: See :class:`~lightning_modules.steps.alignment.Alignment`.
        align_lr: Learning rate of the alignment, plain SGD.
        align_epochs: Its length in walks over the data.
        align_batch: Its batch size, in samples.
        options: See :class:`CD2PFed`.

    Raises:
        ValueError: A number is out of its range, or a word unknown.
    """

    kept = ("own.*", "previous.*")
    net: SplitNet
    class_means: Tensor

    def __init__(
        self,
        net: SplitNet,
        *,
        align_target: AlignTarget = "class_mean",
        align_lr: float = 0.01,
        align_epochs: int = 1,
        align_batch: int = 16,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        self.align = Alignment(align_target, align_lr, align_epochs, align_batch)
        self.previous = frozen(net.backbone)
        self.register_buffer("class_means", torch.zeros(net.num_classes, net.features))

    def plan(self) -> Plan:
        """Declare alignment, CD2-pFed's training, and remembering the backbone."""
        return [*alignment_parts(self, self.align), *super().plan(), remember_backbone(self)]
