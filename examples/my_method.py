"""Your own method: each client keeps its head; its backbone stays near the received one."""

from typing_extensions import Unpack

from lightning_modules.base import ClientModule, ClientOptions
from lightning_modules.layers import copy_into, frozen, frozen_parameters
from lightning_modules.losses import proximal
from lightning_modules.nets import SplitNet
from pfl.core.types import Batch, Broadcast, ClientInfo, Phase, Plan, Terms


class MyMethod(ClientModule):
    """Train the head first, then the whole network with the backbone pulled to the received one."""

    shared = ("net.backbone.*",)  # travels
    kept = ("net.head.*",)  # stays with the client
    vectorizable = True
    net: SplitNet

    def __init__(
        self, net: SplitNet, *, pull: float = 0.1, **options: Unpack[ClientOptions]
    ) -> None:
        super().__init__(net, **options)
        self.pull = pull
        self.received = frozen(net.backbone)  # a copy in buffers, without gradients

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the backbone, and store it for this round."""
        super().receive(broadcast, info)
        copy_into(self.received, self.net.backbone)

    def plan(self) -> Plan:
        """Declare one epoch of the head, then the epochs of the whole network."""
        return [
            Phase(name="head", objective=self.losses, trains=("net.head.*",)),
            Phase(name="pulled", objective=self._pulled, epochs=self.epochs),
        ]

    def _pulled(self, batch: Batch) -> Terms:
        anchors = frozen_parameters(self.received, self.net.backbone)
        distance = proximal(self.net.backbone.parameters(), anchors)
        return {**self.losses(batch), "pull": self.pull * distance}
