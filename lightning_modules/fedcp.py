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

from lightning_modules.base import ClientModule, ClientOptions
from lightning_modules.layers import copy_into, draw_noise, frozen
from lightning_modules.losses import kernel_discrepancy
from lightning_modules.losses.numerics import gumbel, unit
from lightning_modules.nets import SplitNet
from lightning_modules.nets.initial import seed_of
from lightning_modules.nets.split import must_be_split
from pfl.core.checks import at_least_one, not_negative
from pfl.core.noise import GENERATOR
from pfl.core.seeds import derive, scoped
from pfl.core.server import Server, ServerState
from pfl.core.space import Dimension
from pfl.core.types import Batch, Broadcast, ClientInfo, Phase, Plan, Terms, Upload


class FedCP(ClientModule):
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

    shared = ("net.backbone.*", "generic.*", "policy.*")
    kept = ("net.head.*",)
    vectorizable = True
    net: SplitNet

    def __init__(
        self,
        net: SplitNet,
        *,
        discrepancy_weight: float = 5.0,
        anchor_mode: Literal["eval", "train"] = "eval",
        gumbel_batch: int | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        must_be_split(net)
        not_negative(discrepancy_weight=discrepancy_weight)
        at_least_one(gumbel_batch=gumbel_batch)
        self.discrepancy_weight = discrepancy_weight
        self.noise = {} if gumbel_batch is None else {"gate": (gumbel_batch, 2, net.features)}
        size, both = net.features, 2 * net.features
        with scoped(derive(seed_of(net), "policy")):
            self.policy = nn.Sequential(nn.Linear(size, both), nn.LayerNorm(both), nn.ReLU())
        self.generic = copy.deepcopy(net.head).requires_grad_(False)
        self.anchor = frozen(net.backbone, batch_statistics=anchor_mode == "train")
        self.vector = nn.Buffer(self._class_sum())

    @classmethod
    def space(cls) -> Sequence[Dimension]:
        """Return values of lambda to search."""
        return (Dimension("discrepancy_weight", choices=(0.0, 1.0, 5.0, 10.0)),)

    @classmethod
    def noise_generator(cls, options: Mapping[str, Any]) -> str | None:
        """Return the name of the noise generator if masks have noise."""
        return GENERATOR if options.get("gumbel_batch") else None

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the shared entries, and set the received backbone and the vector v of the round."""
        super().receive(broadcast, info)
        copy_into(self.anchor, self.net.backbone)
        self.vector.copy_(self._class_sum())

    def plan(self) -> Plan:
        """Declare one phase, which trains all but the generic head."""
        return [
            Phase(
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

    def losses(self, batch: Batch) -> Terms:
        """Return the loss of both heads, and the weighted ``discrepancy`` of the features."""
        z = self.net.backbone(batch.x)
        with torch.no_grad():
            received = self.anchor(batch.x)
        apart = kernel_discrepancy(z, received, batch.weight)
        terms = self.supervised(self._logits(z, self._gumbel(batch)), batch)
        return {**terms, "discrepancy": self.discrepancy_weight * apart}

    def upload(self, info: ClientInfo) -> Upload:
        """Return backbone, policy, and the mean of both heads in place of the generic one."""
        personal, common = self.net.head.state_dict(), self.generic.state_dict()
        means = {f"generic.{name}": (value + personal[name]) / 2 for name, value in common.items()}
        sent = super().upload(info)
        return replace(sent, shared={name: means.get(name, v) for name, v in sent.shared.items()})

    def server(self) -> Server[ServerState]:
        """Return a server that averages; a newcomer's personal head is the generic one."""
        return Server(self.weighting, inherits=("generic.", "net.head."))

    def _gumbel(self, batch: Batch) -> Tensor | float:
        """Return (B, 2, D) Gumbel noise of a step, if masks have any."""
        if not self.noise:
            return 0.0
        normal = (batch.noise or draw_noise(self.noise, self.vector))["gate"]
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
