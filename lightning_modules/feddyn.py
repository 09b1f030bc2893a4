"""FedDyn: FedProx with a linear term for each client, by which all optima come to agree.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, arXiv 2111.04263. The
network travels, both ways; the sum of all changes that a client sent, H_i, stays. The paper's
gradient state is -alpha H_i, and its server state h is -alpha times the mean of all H_i. Departs
from the paper as its authors say: the sum in the server's step is over differences (parentheses are
missing in print). Departs from the authors' code, which divides alpha by each client's share of the
data, and reports the mean of the clients' models, not the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from lightning_modules.base import ClientModule
from lightning_modules.losses import linear, proximal
from lightning_modules.steps.optimizers import warn_of_overshoot
from pfl.core.checks import positive
from pfl.core.server import Server, ServerState
from pfl.core.state import add, select, subtract
from pfl.core.types import (
    Batch,
    Broadcast,
    ClientInfo,
    Pass,
    Patterns,
    Phase,
    Plan,
    State,
    Terms,
    Totals,
    Upload,
)


class FedDyn(ClientModule):
    """``CE(w) + alpha <H_i, w> + alpha / 2 ||w - w^t||^2``, and a server that goes beyond the mean.

    Args:
        net: The network.
        alpha: Strength of both terms; the authors' examples have 0.01. A small one weakens the pull
            and so makes H_i larger. The learning rate times it must stay below 2.
        weighting: How uploads are weighed; the paper's is ``uniform``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``alpha`` is not positive.

    Warns:
        UserWarning: The learning rate times ``alpha`` is 1 or more.
    """

    kept = ("travelled",)
    vectorizable = True
    receives_global = True
    travelled: Tensor
    start: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        alpha: float = 0.1,
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        positive(alpha=alpha)
        self.alpha = alpha
        weights = self._weights().detach()
        self.register_buffer("travelled", torch.zeros_like(weights))  # H_i
        self.register_buffer("start", weights.clone())  # w^t
        warn_of_overshoot(self.configure_optimizers(), alpha, "alpha")

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load the network, and remember it as w^t."""
        super().receive(broadcast, info)
        self.start.copy_(self._weights())

    def plan(self) -> Plan:
        """Declare training, after which its way is added to H_i."""
        return [
            Phase(name="local", objective=self.losses, epochs=self.epochs),
            Pass(name="travelled", then=self._add_way),
        ]

    def losses(self, batch: Batch) -> Terms:
        """Return ``ce``, ``linear`` and ``prox``, weighted."""
        weights = [self._weights()]
        return {
            **super().losses(batch),
            "linear": self.alpha * linear(weights, [self.travelled]),
            "prox": self.alpha * proximal(weights, [self.start]),
        }

    def server(self) -> Server[Any]:
        """Return a server that averages models, and adds up the changes."""
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return DynServer(names, self.weighting)

    def _weights(self) -> Tensor:
        return parameters_to_vector(self.net.parameters())

    def _add_way(self, totals: Totals) -> State:
        del totals
        return {"travelled": self.travelled + (self._weights() - self.start)}


@dataclass(frozen=True, kw_only=True)
class DynState(ServerState):
    """The server's state: the model that is sent, and its distance from the clients' mean.

    Attributes:
        ahead: The mean of H_i over all clients, -h / alpha in the paper's letters; of each
            parameter, by name.
        clients: N, the clients that hold training data.
    """

    ahead: State
    clients: int


class DynServer(Server[DynState]):
    """A server that adds to the mean of the uploads the mean over all clients of all their changes.

    Args:
        parameters: Names of the parameters; other entries are averaged.
        weighting: As in :class:`~pfl.core.server.Server`.
    """

    def __init__(
        self, parameters: Patterns, weighting: Literal["samples", "uniform"] = "uniform"
    ) -> None:
        super().__init__(weighting)
        self.parameters = parameters

    def init(self, shared: State, clients: Sequence[ClientInfo]) -> DynState:
        """Return the initial state, in which nobody has moved yet."""
        zeros = {name: torch.zeros_like(shared[name]) for name in self.parameters}
        members = sum(info.samples > 0 for info in clients)
        return DynState(shared=shared, ahead=zeros, clients=members)

    def aggregate(self, state: DynState, uploads: Sequence[Upload]) -> DynState:
        """Return the state after a round; without uploads everything stays.

        Reports the length of what the server is ahead of the mean.
        """
        after = super().aggregate(state, uploads)
        if not uploads:
            return after
        sent = select(state.shared, self.parameters)
        ahead = state.ahead
        for upload in uploads:
            ahead = add(
                ahead, subtract(select(upload.shared, self.parameters), sent), 1 / state.clients
            )
        moved = add(ahead, after.shared)
        length = torch.linalg.vector_norm(parameters_to_vector(ahead.values()))
        return replace(
            after,
            shared={**after.shared, **moved},
            ahead=ahead,
            report={"ahead": float(length)},
        )
