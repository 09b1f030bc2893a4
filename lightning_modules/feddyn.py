"""FedDyn: FedProx plus a linear term for each client, which makes the clients' optima agree.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, arXiv 2111.04263.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from lightning_modules import base as fl


class FedDyn(fl.ClientModule):
    """FedProx plus a linear term for each client, which makes the clients' optima agree.

    Clients train on ``CE(w) + alpha <H_i, w> + alpha / 2 ||w - w^t||^2``. The last term pulls
    towards the received model w^t; the linear term shifts each client's optimum so that, when
    training has converged, all clients agree on a minimum of the global loss. H_i is the sum of all
    changes that client i has sent; the paper's gradient state is -alpha H_i, and its server state h
    is -alpha times the mean of H_i over all clients. The server adds that mean of H_i to the
    average of the uploads. The network travels both ways; H_i stays.

    The sum in the server's step is taken over differences, as the authors say it should be (the
    printed equation lacks the parentheses).

    Args:
        net: The network.
        alpha: Strength of both terms; the authors' examples use 0.01. A smaller alpha weakens the
            proximal term and so makes H_i larger. Training diverges if the learning rate times
            alpha reaches 2.
        weighting: Weighting of uploads; the paper's is ``uniform``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``alpha`` is not positive.

    Warns:
        UserWarning: The learning rate times ``alpha`` is 1 or more.
    """

    record = fl.MethodRecord(
        name="FedDyn",
        family="One model for all, and where to tune it",
        travels="network",
        stays="sum of its own changes",
        apart="a linear and a proximal term; the server steps beyond the mean",
        paper=fl.Paper(
            "Federated Learning Based on Dynamic Regularization",
            (
                "Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and "
                "Whatmough, Paul and Saligrama, Venkatesh"
            ),
            "ICLR",
            2021,
            "https://arxiv.org/abs/2111.04263",
        ),
    )

    kept = ("travelled",)
    vectorizable = True
    one_model = True

    def __init__(
        self,
        net: nn.Module,
        *,
        alpha: fl.Positive[float] = 0.1,
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        self.alpha = alpha
        weights = self._weights().detach()
        self.travelled = nn.Buffer(torch.zeros_like(weights))  # H_i
        self.start = nn.Buffer(weights.clone())  # w^t
        if not self.net_optimizes:
            fl.warn_of_overshoot(self.configure_optimizers(), alpha, "alpha")

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return alpha in the authors' range."""
        return (fl.Dimension("alpha", choices=(0.001, 0.01, 0.1)),)

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load the network, and store its weights as w^t."""
        super().receive(broadcast, info)
        self.start.copy_(self._weights())

    def plan(self) -> fl.Plan:
        """Declare training, then adding its change of the weights to H_i."""
        return [
            fl.Phase(name="local", objective=self.losses, epochs=self.epochs),
            fl.Pass(name="travelled", then=self._add_way),
        ]

    def losses(self, batch: fl.Batch) -> fl.Terms:
        """Return ``ce`` and the weighted terms ``linear`` and ``prox``."""
        weights = [self._weights()]
        return {
            **super().losses(batch),
            "linear": self.alpha * fl.linear(weights, [self.travelled]),
            "prox": self.alpha * fl.proximal(weights, [self.start]),
        }

    def server(self) -> fl.Server[Any]:
        """Return a server that averages models and accumulates the clients' changes."""
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return DynServer(self.weighting, names)

    def _weights(self) -> Tensor:
        return parameters_to_vector(self.net.parameters())

    def _add_way(self, totals: fl.Totals) -> fl.State:
        return {"travelled": self.travelled + (self._weights() - self.start)}


@dataclass(frozen=True, kw_only=True)
class DynState(fl.ServerState):
    """The server's state: the model that is sent, and its offset from the clients' mean.

    Attributes:
        ahead: Mean of H_i over all clients by parameter name, -h / alpha in the paper's symbols.
        clients: N, the number of clients that have training data.
    """

    ahead: fl.State
    clients: int


class Ahead(fl.Fold[fl.State]):
    """The mean of H_i over all clients, to which each upload adds its change.

    Args:
        state: The server's state before the round.
        names: Names of the parameters.
    """

    def __init__(self, state: DynState, names: fl.Patterns) -> None:
        self._sent, self._names = fl.select(state.shared, names), names
        self._ahead, self._clients = state.ahead, state.clients

    def add(self, upload: fl.Upload) -> None:
        """Add a client's change."""
        self._ahead = self.of_mean(upload, 1)

    def value(self) -> fl.State:
        """Return the mean of H_i."""
        return self._ahead

    def of_mean(self, mean: fl.Upload, count: float) -> fl.State:
        """Return the mean of H_i after ``count`` uploads of this mean."""
        change = fl.subtract(fl.select(mean.shared, self._names), self._sent)
        return fl.add(self._ahead, change, count / self._clients)


@dataclass(eq=False)
class DynServer(fl.Server[DynState]):
    """A server that adds the mean of H_i over all clients to the mean of the uploads.

    Args:
        parameters: Names of the parameters; other entries are only averaged.
    """

    parameters: fl.Patterns = ()

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> DynState:
        """Return the initial state, in which every H_i is zero."""
        zeros = {name: torch.zeros_like(shared[name]) for name in self.parameters}
        members = sum(info.samples > 0 for info in clients)
        return DynState(shared=shared, ahead=zeros, clients=members)

    def begin(self, state: DynState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the mean of the uploads, and that of H_i over all clients."""
        return {**super().begin(state, senders), "ahead": Ahead(state, self.parameters)}

    def finish(self, state: DynState, folded: fl.Folded) -> DynState:
        """Return the new model; report ``ahead``, the norm of the mean of H_i that is added."""
        after, ahead = super().finish(state, folded), folded["ahead"]
        moved = fl.add(ahead, after.shared)
        length = torch.linalg.vector_norm(parameters_to_vector(ahead.values()))
        return replace(
            after, shared={**after.shared, **moved}, ahead=ahead, report={"ahead": float(length)}
        )
