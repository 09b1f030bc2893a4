"""Ditto: FedAvg, plus a personal model for each client that is pulled towards the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, arXiv
2012.04221.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class Ditto(fl.ClientModule):
    """FedAvg, plus a personal model for each client that is pulled towards the global one.

    ``net`` (w) is trained as in FedAvg, ``personal`` (v) on ``CE(v) + lambda / 2 ||v - w^t||^2``,
    whose second term pulls v towards the received model w^t. The global network travels both ways;
    v stays and is the model that is tested.

    Args:
        net: The network; ``personal`` starts as a copy of it.
        proximity: lambda, the strength of the pull towards the received model (the authors use 0.1,
            1 or 2). Training diverges if the learning rate times lambda reaches 2.
        personal_epochs: Epochs of the personal model; ``None`` means ``epochs``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``proximity`` or ``personal_epochs`` is negative.

    Warns:
        UserWarning: The learning rate times ``proximity`` is 1 or more.
    """

    record = fl.MethodRecord(
        name="Ditto",
        family="A separate network for each client or group",
        travels="network",
        stays="personal network",
        apart="the personal network is pulled towards the global one",
        paper=fl.Paper(
            "Ditto: Fair and Robust Federated Learning Through Personalization",
            "Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia",
            "ICML",
            2021,
            "https://arxiv.org/abs/2012.04221",
        ),
    )

    kept = ("personal.*",)
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        proximity: fl.NotNegative[float] = 1.0,
        personal_epochs: fl.EpochCount | None = None,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.personal = fl.copied(net)
        self.proximity = proximity
        self.personal_epochs = self.epochs if personal_epochs is None else personal_epochs
        if not self.net_optimizes:
            fl.warn_of_overshoot(self.optimizer(self.personal.parameters()), proximity, "lambda")

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda in the authors' range."""
        return (fl.Dimension("proximity", choices=(0.1, 1.0, 2.0)),)

    @property
    def tested_net(self) -> nn.Module:
        """The personal model."""
        return self.personal

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the personal model."""
        logits: Tensor = self.personal(x)
        return logits

    def plan(self) -> fl.Plan:
        """Declare two phases: the personal model, while ``net`` is as received, then ``net``."""
        return [
            fl.Phase(
                name="personal",
                objective=self._pulled,
                epochs=self.personal_epochs,
                trains=("personal.*",),
            ),
            fl.Phase(name="local", objective=self._fedavg, epochs=self.epochs, trains=("net.*",)),
        ]

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages networks; newcomers copy the received network."""
        return fl.Server(self.weighting, inherits=("net.", "personal."))

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load the global model into both models."""
        super().load_global(broadcast)
        fl.assign(self.personal, self.net.state_dict())

    def _pulled(self, batch: fl.Batch) -> fl.Terms:
        anchors = [value.detach() for value in self.net.parameters()]
        distance = fl.proximal(self.personal.parameters(), anchors)
        return {**self.objective(self.personal, batch), "prox": self.proximity * distance}

    def _fedavg(self, batch: fl.Batch) -> fl.Terms:
        return self.objective(self.net, batch)
