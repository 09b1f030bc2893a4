"""IFCA: k global models; every client trains the one with the lowest loss on its own data.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020, arXiv
2006.04088.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class IFCA(fl.ClientModule):
    """k global models; each client trains the one that fits its data best.

    ``clusters`` contains the k models; ``net`` is the one that is chosen, trained and tested. A
    client chooses the model with the lowest loss on its training data; the server averages each
    model over the clients that chose it. All k models come down; the trained model and its number
    go up; nothing stays with the client.

    Args:
        net: The first of the k initial models. The others are copies in which every submodule that
            has ``reset_parameters`` is drawn anew, because equal models would never separate.
        k: Number of clusters (the authors use 2 to 4).
        options: See :class:`ClientModule`.

    Raises:
        ValueError: ``k`` is less than 1.
    """

    record = fl.MethodRecord(
        name="IFCA",
        family="A separate network for each client or group",
        travels="k networks",
        apart="each client picks the network that fits it best",
        paper=fl.Paper(
            "An Efficient Framework for Clustered Federated Learning",
            "Ghosh, Avishek and Chung, Jichan and Yin, Dong and Ramchandran, Kannan",
            "NeurIPS",
            2020,
            "https://arxiv.org/abs/2006.04088",
        ),
    )

    shared = ("clusters.*",)
    extra = ("cluster",)
    vectorizable = True
    needs = ("sample_losses",)

    def __init__(
        self, net: nn.Module, *, k: fl.AtLeastOne = 2, **options: Unpack[fl.ClientOptions]
    ) -> None:
        super().__init__(net, **options)
        self.k = k
        self.clusters = nn.ModuleList(fl.copied(net) for _ in range(k)).requires_grad_(False)
        for number, cluster in enumerate(self.clusters):
            if number > 0:
                fl.redraw(cluster, fl.derive(fl.seed_of(net), "cluster", number))
        self.cluster = nn.Buffer(torch.tensor(0, dtype=torch.int32))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return k in the authors' range."""
        return (fl.Dimension("k", choices=(2, 3, 4)),)

    @property
    def extra_within(self) -> Mapping[str, str]:
        """The number of one of the k clusters."""
        return {"cluster": f"[0, {self.k - 1}]"}

    def receive(self, broadcast: fl.Broadcast, info: fl.ClientInfo) -> None:
        """Load all models; the network is the first one until a client chooses.

        A client without training data never does.
        """
        super().receive(broadcast, info)
        fl.assign(self.net, self.clusters[0].state_dict())

    def plan(self) -> fl.Plan:
        """Declare choosing a model, training it, and copying it back to its cluster."""
        return [
            *self.adapt(),
            fl.Phase(name="local", objective=self.losses, epochs=self.epochs, trains=("net.*",)),
            fl.Pass(name="return", then=self._put_back),
        ]

    def adapt(self) -> fl.Plan:
        """Declare choosing a model by the loss on the training data."""
        return [fl.Pass(name="choose", statistic=self._losses, then=self._choose)]

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the trained model and its number."""
        sent, trained = super().upload(info), f"clusters.{int(self.cluster)}"
        return replace(sent, shared=fl.select(sent.shared, (f"{trained}.*",)))

    def server(self) -> fl.Server[fl.ServerState]:
        """Return a server that averages each cluster."""
        return IFCAServer(self.weighting, self.k)

    def _losses(self, batch: fl.Batch) -> fl.State:
        rows = [self.task.sample_losses(net(batch.x), batch.y) for net in self.clusters]
        losses = torch.stack(rows)
        return {"loss": (losses if batch.weight is None else losses * batch.weight).sum(1)}

    def _choose(self, totals: fl.Totals) -> fl.State:
        """Choose the cluster with the lowest loss, the first one in a tie."""
        choice = totals.sums["loss"].argmin()
        chosen = self.clusters[int(choice)].state_dict()
        number = choice.to(self.cluster.dtype)
        return {"cluster": number, **{f"net.{name}": value for name, value in chosen.items()}}

    def _put_back(self, totals: fl.Totals) -> fl.State:
        home = f"clusters.{int(self.cluster)}"
        return {f"{home}.{name}": value for name, value in self.net.state_dict().items()}


class ClusterMeans(fl.Fold[tuple[fl.State, list[int]]]):
    """The means of the models that clients chose, by cluster.

    Args:
        weight: As in :class:`pfl.core.folds.Mean`.
        k: Number of clusters.
    """

    def __init__(self, weight: Callable[[fl.Upload], float], k: int) -> None:
        self._means, self._sizes = [fl.Mean(weight) for _ in range(k)], [0] * k

    def add(self, upload: fl.Upload) -> None:
        """Add a model to its cluster."""
        number = int(upload.extra["cluster"])
        self._means[number].add(upload)
        self._sizes[number] += 1

    def value(self) -> tuple[fl.State, list[int]]:
        """Return the new values of clusters that clients chose, and the number of their clients."""
        found: fl.State = {}
        for mean, size in zip(self._means, self._sizes, strict=True):
            found |= mean.value() if size else {}
        return found, self._sizes


@dataclass(eq=False)
class IFCAServer(fl.Server[fl.ServerState]):
    """A server that averages every cluster over the clients that chose it.

    Attributes:
        k: Number of clusters.
    """

    reports: ClassVar = {**fl.Server.reports, "cluster": "number of the cluster"}
    k: int = 2

    def begin(self, state: fl.ServerState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare a mean for each cluster."""
        return {"clusters": ClusterMeans(self.weight, self.k)}

    def finish(self, state: fl.ServerState, folded: fl.Folded) -> fl.ServerState:
        """Return the state with new models; clusters that no client chose keep theirs."""
        shared, sizes = folded["clusters"]
        return replace(
            state,
            shared={**state.shared, **shared},
            report={f"cluster_{number}": size for number, size in enumerate(sizes)},
            client_report=self.reported(folded),
        )
