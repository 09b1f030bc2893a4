"""FedProx: FedAvg whose local weights are pulled towards the received ones.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv 1812.06127.
FedProx-P is the name that FedAS gives to FedProx with local fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl
from lightning_modules.finetune import FineTuned


class FedProx(fl.ClientModule):
    """FedAvg whose clients are pulled towards the received model.

    Clients train on ``CE(w) + mu / 2 ||w - w^t||^2``. The second term pulls all parameters w, but
    no batch-norm statistics, towards the received model w^t. It is part of the gradient, before
    momentum and weight decay. The whole network travels both ways, and nothing stays with the
    client.

    Args:
        net: The network.
        mu: Weight of the second term; the authors search {0.001, 0.01, 0.1, 1}. Training diverges
            if the learning rate times ``mu`` reaches 2.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``mu`` is negative.

    Warns:
        UserWarning: The learning rate times ``mu`` is 1 or more.
    """

    record = fl.MethodRecord(
        name="FedProx",
        family="One model for all, and where to tune it",
        travels="network",
        apart="a proximal term towards the received network",
        paper=fl.Paper(
            "Federated Optimization in Heterogeneous Networks",
            (
                "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and "
                "Talwalkar, Ameet and Smith, Virginia"
            ),
            "MLSys",
            2020,
            "https://arxiv.org/abs/1812.06127",
        ),
    )

    vectorizable = True
    one_model = True

    def __init__(
        self,
        net: nn.Module,
        *,
        mu: fl.NotNegative[float] = 0.01,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.mu = mu
        self.anchor = fl.frozen(net)
        if not self.net_optimizes:
            fl.warn_of_overshoot(self.configure_optimizers(), mu, "mu")

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return mu in the authors' range."""
        return (fl.Dimension("mu", choices=(0.001, 0.01, 0.1, 1.0)),)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the network, and store a copy as w^t."""
        super().receive(broadcast, info)
        fl.copy_into(self.anchor, self.net)

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the weighted ``prox``."""
        distance = fl.proximal(self.net.parameters(), fl.frozen_parameters(self.anchor, self.net))
        return {**super().losses(batch), "prox": self.mu * distance}


class FedProxP(FineTuned, FedProx):
    """FedProx whose global model each client fine-tunes before the test.

    What travels and what stays is as in :class:`FedProx`: the fine-tuned copy is discarded after
    the test.

    Args:
        net: The network; a ``SplitNet`` if only a part is fine-tuned.
        options: See :class:`FineTuned`, :class:`FedProx` and :class:`ClientModule`.
    """

    record = replace(FedProx.record, name="FedProx-P")

    def ft_objective(self) -> None:
        """Return ``None``, plain cross-entropy: the proximal term is for training only."""
