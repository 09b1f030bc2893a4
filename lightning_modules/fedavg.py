"""FedAvg: one global model, local SGD, sample-weighted averaging; FedAvg-P fine-tunes it.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, arXiv 1602.05629. The whole network travels, both ways; nothing stays. Departs from
the paper in nothing. FedAvg-P is FedAS's name for the same training with local fine-tuning of the
global model before the test.
"""

from __future__ import annotations

from lightning_modules.base import ClientModule
from lightning_modules.finetune import FineTuned


class FedAvg(ClientModule):
    """The whole network travels, nothing stays; see :class:`ClientModule` for the arguments."""

    vectorizable = True


class FedAvgP(FineTuned, FedAvg):
    """FedAvg, tested after fine-tuning; see :class:`FineTuned` for the arguments."""

    def ft_objective(self) -> None:
        """Return the plain cross-entropy."""
