"""FedAvg: one global model, local SGD, averaging weighted by samples; FedAvg-P fine-tunes it.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017, arXiv 1602.05629. FedAvg-P is the name that FedAS gives to FedAvg with local fine-tuning.
"""

from __future__ import annotations

from dataclasses import replace

from lightning_modules import base as fl
from lightning_modules.finetune import FineTuned


class FedAvg(fl.ClientModule):
    """One global model, which clients train locally and the server averages.

    Each participant trains the received network on its own data; the server averages the uploaded
    networks, weighted by samples. The whole network travels both ways, and nothing stays with the
    client. There are no departures from the paper. :class:`ClientModule` lists the arguments.
    """

    record = fl.MethodRecord(
        name="FedAvg",
        family="One model for all, and where to tune it",
        travels="network",
        apart="the weighted mean; `-P` fine-tunes before the test",
        paper=fl.Paper(
            "Communication-Efficient Learning of Deep Networks from Decentralized Data",
            (
                "McMahan, H. Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and "
                "Agüera y Arcas, Blaise"
            ),
            "AISTATS",
            2017,
            "https://arxiv.org/abs/1602.05629",
        ),
    )

    vectorizable = True
    one_model = True


class FedAvgP(FineTuned, FedAvg):
    """FedAvg whose global model each client fine-tunes before the test.

    What travels and what stays is as in :class:`FedAvg`: the fine-tuned copy is discarded after the
    test. :class:`FineTuned` lists the arguments.
    """

    record = replace(FedAvg.record, name="FedAvg-P")

    def ft_objective(self) -> None:
        """Return ``None``, plain cross-entropy."""
