"""FedSA-LoRA: of each low-rank product B A, the factor A is averaged and B stays with the client.

Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025, arXiv
2410.01463.

Departs from the authors' code in: each client has its own B and head, as in the paper (the released
files let all clients use one model object, so that each goes on from the previous one's B).
"""

from __future__ import annotations

from typing import Literal

from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedSALoRA(fl.ClientModule):
    """Low-rank adapters whose A is averaged, while B and the head stay with the client.

    All are trained together. The frozen weights are in no message. A network without adapters, as
    of rank zero, is a frozen one whose head each client tunes alone.

    Args:
        net: A network adapted by :class:`LoRA` or by ``peft``.
        head: Whether what is trained beside the adapters stays (``kept``) or is averaged with A.
        options: See :class:`ClientModule`.

    Raises:
        TypeError: The network is not adapted.
    """

    record = fl.MethodRecord(
        name="FedSA-LoRA",
        family="Adapters on a frozen network",
        travels="A of the adapters",
        stays="B of the adapters, head",
        apart="the factor A is common, B is the client's own",
        paper=fl.Paper(
            "Selective Aggregation for Low-Rank Adaptation in Federated Learning",
            (
                "Guo, Pengxin and Zeng, Shuang and Wang, Yanran and Fan, Huijie and Wang, Feifei "
                "and Qu, Liangqiong"
            ),
            "ICLR",
            2025,
            "https://arxiv.org/abs/2410.01463",
        ),
        shown=None,
    )

    vectorizable = True
    needs = (fl.ADAPTERS,)

    def __init__(
        self,
        net: nn.Module,
        *,
        head: Literal["kept", "shared"] = "kept",
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.factors, self.head = fl.factors_of(net), head

    @property
    def shared(self) -> fl.Patterns:
        """Every A, and the head if it is averaged."""
        return (*self.factors.down, *(self.factors.others if self.head == "shared" else ()))

    @property
    def kept(self) -> fl.Patterns:
        """Every B, and the head unless it is averaged."""
        return (*self.factors.up, *(self.factors.others if self.head == "kept" else ()))
