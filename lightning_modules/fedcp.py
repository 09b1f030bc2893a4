"""FedCP: a shared policy divides each sample's features between a personal and a common head.

Zhang et al., "FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy", KDD 2023, arXiv 2307.01217; the authors' released code.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.losses.numerics import gumbel, unit


class FedCP(fl.ClientModule):
    """A personal and a generic head, between which a policy divides each sample's features.

    The logits are ``u(z * r) + h(z * s)``: u is the personal head, h the generic one. The masks r
    and s = 1 - r of a sample are the softmax of the output of a small network, the policy, for ``z
    * v / ||v||``, where the vector v is the sum over classes of the weights of u at the beginning
    of the round. Backbone, personal head and policy are trained together on the cross-entropy plus
    lambda times the discrepancy between the backbone's features and those of the received backbone;
    h is frozen. Backbone, policy and h travel both ways, but ``(u + h) / 2`` goes up in place of h;
    u stays.

    Departure from the released code: Gumbel noise in the masks is an option, and is not drawn in
    tests.

    Args:
        net: A ``SplitNet``, whose head is the personal one and has linear layers.
        discrepancy_weight: lambda (the authors use 5 on MNIST).
        anchor_mode: Whether batch norms of the received backbone use their running statistics
            (``eval``) or those of the batch (``train``), as in the released code.
        gumbel_batch: Add Gumbel noise to the policy's outputs in training, as in the released code,
            for batches of at most this size; ``None`` adds none.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range, or a batch is larger than ``gumbel_batch``.
    """

    record = fl.MethodRecord(
        name="FedCP",
        family="A part of the network stays with the client",
        travels="backbone, generic head, policy",
        stays="head",
        apart="a policy divides each sample's features between a personal and a generic head",
        paper=fl.Paper(
            (
                "{FedCP}: Separating Feature Information for Personalized Federated Learning "
                "via Conditional Policy"
            ),
            (
                "Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui "
                "and Ma, Ruhui and Guan, Haibing"
            ),
            "KDD",
            2023,
            "https://arxiv.org/abs/2307.01217",
        ),
    )

    shared = ("net.backbone.*", "generic.*", "policy.*")
    kept = ("net.head.*",)
    vectorizable = True
    needs = ("parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        discrepancy_weight: fl.NotNegative[float] = 5.0,
        anchor_mode: Literal["eval", "train"] = "eval",
        gumbel_batch: fl.AtLeastOne | None = None,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.discrepancy_weight = discrepancy_weight
        self.noise = {} if gumbel_batch is None else {"gate": (gumbel_batch, 2, net.features)}
        size, both = net.features, 2 * net.features
        with fl.scoped(fl.derive(fl.seed_of(net), "policy")):
            self.policy = nn.Sequential(nn.Linear(size, both), nn.LayerNorm(both), nn.ReLU())
        self.generic = copy.deepcopy(net.head).requires_grad_(False)
        self.anchor = fl.frozen(net.backbone, batch_statistics=anchor_mode == "train")
        self.vector = nn.Buffer(self._class_sum())

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return values of lambda to search."""
        return (fl.Dimension("discrepancy_weight", choices=(0.0, 1.0, 5.0, 10.0)),)

    @classmethod
    def noise_generator(cls, options: Mapping[str, Any]) -> str | None:
        """Return the name of the noise generator if masks have noise."""
        return fl.GENERATOR if options.get("gumbel_batch") else None

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the shared entries, and set the received backbone and the vector v of the round."""
        super().receive(broadcast, info)
        fl.copy_into(self.anchor, self.net.backbone)
        self.vector.copy_(self._class_sum())

    def plan(self) -> fl.Plan:
        """Declare one phase, which trains all but the generic head."""
        return [
            fl.Phase(
                name="local",
                objective=self.losses,
                epochs=self.epochs,
                trains=("net.*", "policy.*"),
                noise=self.noise,
            )
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits, the sum of both heads."""
        return self._logits(self.net.backbone(x))

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return the loss of both heads, and the weighted ``discrepancy`` of the features."""
        z = self.net.backbone(batch.x)
        with torch.no_grad():
            received = self.anchor(batch.x)
        apart = fl.kernel_discrepancy(z, received, batch.weight)
        terms = self.supervised(self._logits(z, self._gumbel(batch)), batch)
        return {**terms, "discrepancy": self.discrepancy_weight * apart}

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return backbone, policy, and the mean of both heads in place of the generic one."""
        personal, common = self.net.head.state_dict(), self.generic.state_dict()
        means = {f"generic.{name}": (value + personal[name]) / 2 for name, value in common.items()}
        sent = super().upload(info)
        return replace(sent, shared={name: means.get(name, v) for name, v in sent.shared.items()})

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages; a newcomer's personal head is the generic one."""
        return fl.Server(self.weighting, inherits=("generic.", "net.head."))

    def _gumbel(self, batch: fl.Batch) -> Tensor | float:
        """Return (B, 2, D) Gumbel noise of a step, if masks have any."""
        if not self.noise:
            return 0.0
        normal = (batch.noise or fl.draw_noise(self.noise, self.vector))["gate"]
        if len(batch.y) > len(normal):
            raise ValueError(
                f"a batch has {len(batch.y)} samples, but gumbel_batch of FedCP is {len(normal)}: "
                "set it to the batch size"
            )
        return gumbel(normal[: len(batch.y)])

    def _logits(self, z: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        scores = self.policy(z * unit(self.vector)).unflatten(-1, (2, -1))
        masks = (scores + noise).softmax(-2)
        logits: Tensor = self.net.head(z * masks[:, 0]) + self.generic(z * masks[:, 1])
        return logits

    def _class_sum(self) -> Tensor:
        """Return the (D,) sum over classes of the weights of all layers of the personal head."""
        linears = [layer for layer in self.net.head.modules() if isinstance(layer, nn.Linear)]
        total = linears[-1].weight.new_ones(self.net.num_classes)
        for layer in reversed(linears):
            total = total @ layer.weight
        return total.detach()
