"""FedROD: a shared head on a loss that evens out class shares, and a private head on what is left.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022, arXiv 2107.00778. Body and generic head travel, both ways; the personal head stays. There
is no released code. Settled by us: the personal head starts at zero, so that a client begins with
the generic prediction (public codes copy the generic head, which doubles the first logits). The
paper's second variant, whose personal heads a shared hypernetwork makes, is not offered.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_modules.base import ClientModule
from lightning_modules.losses import cross_entropy
from lightning_modules.nets import SplitNet
from lightning_modules.nets.initial import zero_last_layer
from pfl.core.checks import not_negative
from pfl.core.types import Batch, Broadcast, ClientInfo, Terms


class FedROD(ClientModule):
    """``CE(g + gamma log N, y)`` for body and generic head, ``CE(g + u, y)`` for the personal head.

    g are the logits of the generic head, u those of the personal one, N the client's training
    samples of each class. The second loss moves the personal head only. Tested are ``g + u``, and g
    as the global model.

    Args:
        net: The network; its head is the generic one.
        gamma: Exponent of the class counts; 0 makes the first loss FedAvg's.
        head_init: The personal head starts as a ``copy`` of the generic one, or with a last layer
            of ``zero``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``gamma`` is negative.
    """

    kept = ("personal.*",)
    vectorizable = True
    needs_classes = True
    net: SplitNet
    log_prior: Tensor

    def __init__(
        self,
        net: SplitNet,
        *,
        gamma: float = 1.0,
        head_init: Literal["zero", "copy"] = "zero",
        **options: Any,
    ) -> None:
        super().__init__(net, **options)
        not_negative(gamma=gamma)
        self.gamma = gamma
        self.personal = copy.deepcopy(net.head)
        if head_init == "zero":
            zero_last_layer(self.personal)
        self.register_buffer("log_prior", torch.zeros(net.num_classes))

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load body and generic head; note the class counts."""
        super().receive(broadcast, info)
        # A finite number in the place of log 0, of the same effect: 0 times infinity is not 0 for a
        # padded row, whatever its weight.
        self.log_prior.copy_(info.class_counts.pow(self.gamma).log().clamp_min(-1e4))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits, the sum over both heads."""
        z = self.net.backbone(x)
        logits: Tensor = self.net.head(z) + self.personal(z)
        return logits

    def losses(self, batch: Batch) -> Terms:
        """Return ``generic``, the balanced softmax, and ``personal``."""
        z = self.net.backbone(batch.x)
        generic = self.net.head(z)
        personal = generic.detach() + self.personal(z.detach())
        return {
            "generic": cross_entropy(generic + self.log_prior, batch.y, batch.weight),
            "personal": cross_entropy(personal, batch.y, batch.weight),
        }

    def load_global(self, broadcast: Broadcast) -> None:
        """Load the model with a personal head of zeros, so that the generic one predicts alone."""
        super().load_global(broadcast)
        zero_last_layer(self.personal)
