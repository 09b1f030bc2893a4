"""FedROD: a generic head on a class-balanced loss, and a personal head on the remaining error.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022, arXiv 2107.00778. There is no released code.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedROD(fl.ClientModule):
    """A shared generic head on a class-balanced loss, and a personal head for the remaining error.

    Let g be the logits of the generic head, u those of the personal one, and N the client's
    training samples of each class. ``CE(g + gamma log N, y)``, a balanced softmax, trains backbone
    and generic head as if all classes were equally frequent; ``CE(g + u, y)`` trains the personal
    head alone, on the remaining error. Backbone and generic head travel both ways; the personal
    head stays. Clients are tested with ``g + u``, the global model with g.

    The paper does not say how the personal head is initialised: here with zeros, so that a client
    starts from the generic prediction (public codes copy the generic head, which doubles the first
    logits). The paper's second variant, in which a shared hypernetwork generates the personal
    heads, is not implemented.

    Args:
        net: The network; its head is the generic one.
        gamma: Exponent of the class counts; 0 turns the first loss into FedAvg's.
        head_init: The personal head starts as a ``copy`` of the generic one, or with a last layer
            of ``zero``.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: ``gamma`` is negative, the task has ``label_smoothing``, or the head's last
            linear layer is frozen or adapted, so that it cannot be set to zero.
    """

    record = fl.MethodRecord(
        name="FedROD",
        family="A part of the network stays with the client",
        travels="network",
        stays="second head",
        apart="a balanced softmax, and a private head for the residual",
        paper=fl.Paper(
            "On Bridging Generic and Personalized Federated Learning for Image Classification",
            "Chen, Hong-You and Chao, Wei-Lun",
            "ICLR",
            2022,
            "https://arxiv.org/abs/2107.00778",
        ),
    )

    kept = ("personal.*",)
    vectorizable = True
    needs = ("classes", "parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        gamma: fl.NotNegative[float] = 1.0,
        head_init: Literal["zero", "copy"] = "zero",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.take_task(self.task)
        self.gamma = gamma
        self.personal = copy.deepcopy(net.head)
        # Also for a copy: the global model needs a head of zeros.
        fl.zero_last_layer(self.personal)
        if head_init == "copy":
            fl.assign(self.personal, net.head.state_dict())
        self.log_prior = nn.Buffer(torch.zeros(net.num_classes))

    def take_task(self, task: fl.Task) -> None:
        """Take the task of the data."""
        if "label_smoothing" in task.options():
            raise ValueError(
                "FedROD cannot take label_smoothing, which gives every class a share of each "
                "label: the generic loss rules out the classes that a client lacks"
            )
        super().take_task(task)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load backbone and generic head, and store the logarithm of the class counts."""
        super().receive(broadcast, info)
        # A large negative number replaces log 0: for padded rows, weight 0 times infinity would be
        # NaN.
        self.log_prior.copy_(info.class_counts.pow(self.gamma).log().clamp_min(-1e4))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits: the sum of both heads."""
        z = self.net.backbone(x)
        logits: Tensor = self.net.head(z) + self.personal(z)
        return logits

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``generic``, a balanced softmax, and ``personal``."""
        z = self.net.backbone(batch.x)
        generic = self.net.head(z)
        personal = generic.detach() + self.personal(z.detach())
        return {
            "generic": self.task.loss(generic + self.log_prior, batch.y, batch.weight),
            "personal": self.task.loss(personal, batch.y, batch.weight),
        }

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load the model with a personal head of zeros, so that the generic head alone predicts."""
        super().load_global(broadcast)
        fl.zero_last_layer(self.personal)
