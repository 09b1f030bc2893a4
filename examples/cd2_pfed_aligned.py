"""CD2-pFed with FedAS's parameter alignment.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024, Fig. 6b and the last
paragraph of section 3.2. Neither paper gives settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lightning_modules import base as fl
from lightning_modules.cd2_pfed import CD2PFed, CD2State
from lightning_modules.fedas import LAST


class CD2PFedAligned(CD2PFed):
    """CD2-pFed whose clients align the assembled backbone before they train it.

    The targets are the features of the client's whole previous model, because with channel-wise
    sharing the received weights alone give no features. The shared channels travel as in
    :class:`CD2PFed`; besides its private channels a client keeps the backbone of its last
    participation.

    Args:
        net: A ``SplitNet``; its backbone gives the features (B, D).
        align_target: See :class:`~lightning_modules.steps.alignment.Alignment`.
        align_lr: Learning rate of the alignment, which uses plain SGD.
        align_epochs: Epochs of the alignment.
        align_batch: Batch size of the alignment, in samples.
        options: See :class:`CD2PFed`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range, or ``align_target`` is unknown.
    """

    kept = ("own.*", "previous.*")
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        align_target: fl.AlignTarget = "class_mean",
        align_lr: fl.Positive[float] = 0.01,
        align_epochs: fl.NotNegative[int] = 1,
        align_batch: fl.AtLeastOne = 16,
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        self.align = fl.Alignment(align_target, align_lr, align_epochs, align_batch)
        self.previous = fl.frozen(net.backbone)
        self.class_means = nn.Buffer(torch.zeros(net.num_classes, net.features))

    def plan(self) -> fl.Plan:
        """Declare the alignment, CD2-pFed's training, and storing the backbone."""
        last = fl.remember(self.net.backbone, "previous")
        return [*fl.alignment_parts(self, self.align), *super().plan(), last]

    def server(self) -> fl.Server[CD2State]:
        """Return CD2-pFed's server, whose backbone is the last one of a newcomer."""
        return replace(super().server(), inherits=LAST)
