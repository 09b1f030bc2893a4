"""FedAvg: one global model, local SGD, sample-weighted averaging.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, arXiv 1602.05629. Departs from the paper in nothing.
"""

from __future__ import annotations

from lightning_modules.base import ClientModule


class FedAvg(ClientModule):
    """The whole network travels, nothing stays; see :class:`ClientModule` for the arguments."""

    vectorizable = True
