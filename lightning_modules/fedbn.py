"""FedBN: FedAvg in which batch norms stay with the client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
arXiv 2102.07623; the authors' released code.
"""

from __future__ import annotations

import warnings

from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedBN(fl.ClientModule):
    """FedAvg on everything but the batch norms, which stay with the client.

    Each client keeps the weights, biases and running statistics of its batch norms, and so
    normalises its features by its own distribution. The rest of the network, including layer, group
    and instance norms, travels both ways. The server has no batch norms, so there is no global
    model.

    Args:
        net: The network. ``buffers`` has no effect on its batch norms.
        options: See :class:`ClientModule`.

    Warns:
        UserWarning: The network has no batch norm.
    """

    record = fl.MethodRecord(
        name="FedBN",
        family="A part of the network stays with the client",
        travels="network without batch norms",
        stays="batch norms",
        apart="batch-norm layers stay with the client",
        paper=fl.Paper(
            "{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization",
            "Li, Xiaoxiao and Jiang, Meirui and Zhang, Xiaofei and Kamp, Michael and Dou, Qi",
            "ICLR",
            2021,
            "https://arxiv.org/abs/2102.07623",
        ),
        shown={"model.init_args.net.init_args.batch_norm": True},
    )

    vectorizable = True
    one_model = True

    def __init__(self, net: nn.Module, **options: Unpack[fl.ClientOptions]) -> None:
        super().__init__(net, **options)
        self.norms = tuple(f"{name}.*" for name in fl.batch_norms(self))
        self.global_model = not self.norms
        if not self.norms:
            warnings.warn(
                f"{type(net).__name__} has no batch norm, so FedBN equals FedAvg", stacklevel=2
            )

    @property
    def kept(self) -> fl.Patterns:
        """The batch norms that have any entries."""
        entries = self.state_dict()
        return tuple(norm for norm in self.norms if any(fl.matches(n, (norm,)) for n in entries))

    def shared_names(self) -> tuple[str, ...]:
        """Return the names of the network's entries that do not stay."""
        return tuple(name for name in super().shared_names() if not fl.matches(name, self.kept))
