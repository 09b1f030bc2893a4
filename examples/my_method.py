"""Your own method: each client keeps its head; its backbone stays near the received one."""

from typing_extensions import Unpack

from lightning_modules import base as fl


class MyMethod(fl.ClientModule):
    """Train the head first, then the whole network with the backbone pulled to the received one."""

    shared = ("net.backbone.*",)  # travels
    kept = ("net.head.*",)  # stays with the client
    vectorizable = True
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        pull: fl.NotNegative[float] = 0.1,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.pull = pull
        self.received = fl.frozen(net.backbone)  # a copy in buffers, without gradients

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the backbone, and store it for this round."""
        super().receive(broadcast, info)
        fl.copy_into(self.received, self.net.backbone)

    def plan(self) -> fl.Plan:
        """Declare one epoch of the head, then the epochs of the whole network."""
        return [
            fl.Phase(name="head", objective=self.losses, trains=("net.head.*",)),
            fl.Phase(name="pulled", objective=self._pulled, epochs=self.epochs),
        ]

    def _pulled(self, batch: fl.Batch) -> fl.Terms:
        anchors = fl.frozen_parameters(self.received, self.net.backbone)
        distance = fl.proximal(self.net.backbone.parameters(), anchors)
        return {**self.losses(batch), "pull": self.pull * distance}
