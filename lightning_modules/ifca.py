"""IFCA: k global models; every client trains the one with the lowest loss on its own data.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020, arXiv
2006.04088.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import nn
from typing_extensions import Unpack

from lightning_modules.base import ClientModule, ClientOptions
from lightning_modules.nets.initial import redraw, seed_of
from pfl.core.checks import at_least_one
from pfl.core.seeds import derive
from pfl.core.server import Server, ServerState, received
from pfl.core.space import Dimension
from pfl.core.state import assign, select, weighted_mean
from pfl.core.types import (
    Batch,
    Broadcast,
    ClientInfo,
    Pass,
    Patterns,
    Phase,
    Plan,
    State,
    Totals,
    Upload,
)

# The backbone that all clusters have in common, if they share one.
BODY = "clusters.0.backbone.*"


class IFCA(ClientModule):
    """k global models, of which each client trains the one that fits its data best.

    ``clusters`` holds the k models; ``net`` is the one that is chosen, trained and tested. A client
    chooses the model with the lowest loss on its training data; the server averages each model over
    the clients that chose it. All k models come down; the trained model and its number go up;
    nothing stays with the client.

    Args:
        net: The first of the k initial models. The others are copies in which every submodule that
            has ``reset_parameters`` is drawn anew, because equal models would never separate.
        k: Number of clusters (the authors use 2 to 4).
        averaging: The server replaces a cluster by the average of its clients' models (``model``),
            or adds the sum of their changes, each weighted within the whole round (``gradient``,
            which is the paper's other variant if a client makes one step).
        share_body: Use one backbone for all clusters, averaged over all clients, and one head for
            each cluster (the paper's weight sharing). Needs a ``SplitNet``.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``k`` is less than 1.
    """

    extra = ("cluster",)
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        k: int = 2,
        averaging: Literal["model", "gradient"] = "model",
        share_body: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        at_least_one(k=k)
        self.k = k
        self.averaging: Literal["model", "gradient"] = averaging
        self.share_body = share_body
        self.clusters = nn.ModuleList(copy.deepcopy(net) for _ in range(k)).requires_grad_(False)
        for number, cluster in enumerate(self.clusters):
            fresh = cluster.get_submodule("head") if share_body else cluster
            if number > 0:
                redraw(fresh, derive(seed_of(net), "cluster", number))
        self.cluster = nn.Buffer(torch.tensor(0, dtype=torch.int32))

    @classmethod
    def space(cls) -> Sequence[Dimension]:
        """Return k in the authors' range."""
        return (Dimension("k", choices=(2, 3, 4)),)

    @property
    def shared(self) -> Patterns:
        """All models; a shared backbone only once, as that of the first one."""
        return ("clusters.*.head.*", BODY) if self.share_body else ("clusters.*",)

    def receive(self, broadcast: Broadcast, info: ClientInfo) -> None:
        """Load all models; a shared backbone, and the network until it is chosen, are the first's.

        A client without training data never chooses.
        """
        super().receive(broadcast, info)
        if self.share_body:
            first, *others = self.clusters
            for other in others:
                assign(
                    other.get_submodule("backbone"), first.get_submodule("backbone").state_dict()
                )
        assign(self.net, self.clusters[0].state_dict())

    def plan(self) -> Plan:
        """Declare choosing a model, training it, and copying it back to its cluster."""
        return [
            *self.adapt(),
            Phase(name="local", objective=self.losses, epochs=self.epochs, trains=("net.*",)),
            Pass(name="return", then=self._put_back),
        ]

    def adapt(self) -> Plan:
        """Declare choosing a model by the loss on the training data."""
        return [Pass(name="choose", statistic=self._losses, then=self._choose)]

    def upload(self, info: ClientInfo) -> Upload:
        """Return the trained model and its number."""
        sent, trained = super().upload(info), f"clusters.{int(self.cluster)}"
        names = (f"{trained}.head.*", BODY) if self.share_body else (f"{trained}.*",)
        return replace(sent, shared=select(sent.shared, names))

    def server(self) -> Server[ServerState]:
        """Return a server that averages each cluster."""
        return IFCAServer(self.weighting, self.k, self.averaging, self.share_body)

    def _losses(self, batch: Batch) -> State:
        rows = [self.task.sample_losses(net(batch.x), batch.y) for net in self.clusters]
        losses = torch.stack(rows)
        return {"loss": (losses if batch.weight is None else losses * batch.weight).sum(1)}

    def _choose(self, totals: Totals) -> State:
        """Choose the cluster with the lowest loss, the first one in a tie."""
        choice = totals.sums["loss"].argmin()
        chosen = self.clusters[int(choice)].state_dict()
        number = choice.to(self.cluster.dtype)
        return {"cluster": number, **{f"net.{name}": value for name, value in chosen.items()}}

    def _put_back(self, totals: Totals) -> State:
        number = int(self.cluster)
        values: State = {}
        for name, value in self.net.state_dict().items():
            home = 0 if self.share_body and name.startswith("backbone.") else number
            values[f"clusters.{home}.{name}"] = value
        return values


@dataclass(eq=False)
class IFCAServer(Server[ServerState]):
    """A server that averages every cluster over the clients that chose it.

    The arguments are those of :class:`IFCA`.
    """

    reports: ClassVar = {**Server.reports, "cluster": "number of the cluster"}
    k: int = 2
    averaging: Literal["model", "gradient"] = "model"
    share_body: bool = False

    def merge(self, state: ServerState, uploads: Sequence[Upload]) -> ServerState:
        """Return the state with new models; clusters that nobody chose keep theirs."""
        groups: list[list[int]] = [[] for _ in range(self.k)]
        for position, number in enumerate(received(uploads, "cluster")):
            groups[int(number)].append(position)
        shared = dict(state.shared)
        for members in filter(None, groups):
            shared |= self._average(state, uploads, members)
        weights = self.weights(uploads)
        if self.share_body:
            shared |= weighted_mean([select(u.shared, (BODY,)) for u in uploads], weights)
        return replace(
            state,
            shared=shared,
            report={f"cluster_{number}": len(members) for number, members in enumerate(groups)},
            client_report=self.reported(uploads, weight=weights),
        )

    def _average(
        self, state: ServerState, uploads: Sequence[Upload], members: Sequence[int]
    ) -> State:
        sent = [uploads[member].shared for member in members]
        if self.averaging == "model":
            return weighted_mean(sent, self.weights([uploads[member] for member in members]))
        parts = self.weights(uploads)[list(members)]
        old = {name: state.shared[name] for name in sent[0]}
        return weighted_mean([old, *sent], torch.cat([1 - parts.sum()[None], parts]))
