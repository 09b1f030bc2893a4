"""FedBN: FedAvg in which everything that belongs to a batch norm stays with the client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
arXiv 2102.07623; the authors' released code. All but the batch norms travels, both ways. Departs
from the released code: the average is weighted by samples (``weighting: uniform`` is the code's),
and batch norms are found by their type, where the code, and public codes after it, look for ``bn``
in their names.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from lightning_modules.base import ClientModule
from lightning_modules.layers import batch_norms
from pfl.core.state import matches
from pfl.core.types import Patterns


class FedBN(ClientModule):
    """Weights, biases and statistics of batch norms stay; the rest of the network travels.

    Layer, group and instance norms travel. There is no global model, as the server has no batch
    norms.

    Args:
        net: The network. ``buffers`` makes no difference to it.
        options: See :class:`ClientModule`.

    Warns:
        UserWarning: The network has no batch norm.
    """

    vectorizable = True

    def __init__(self, net: nn.Module, **options: Any) -> None:
        super().__init__(net, **options)
        self.norms = tuple(f"{name}.*" for name in batch_norms(self))
        self.global_model = not self.norms
        if not self.norms:
            warnings.warn(
                f"{type(net).__name__} has no batch norm: FedBN is FedAvg on it", stacklevel=2
            )

    @property
    def kept(self) -> Patterns:
        """The batch norms that hold anything."""
        entries = self.state_dict()
        return tuple(norm for norm in self.norms if any(matches(n, (norm,)) for n in entries))

    def shared_names(self) -> tuple[str, ...]:
        """Return the names of the entries of the network that do not stay."""
        return tuple(name for name in super().shared_names() if not matches(name, self.kept))
