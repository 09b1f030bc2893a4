"""CFL: FedAvg in clusters, which split if clients pull the model in opposite directions.

Sattler et al., "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization
under Privacy Constraints", IEEE TNNLS 2020, arXiv 1910.01991; the authors' released code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from lightning_modules import base as fl
from lightning_modules.steps.halves import Linkage, Split, Splitting, changes_of, walked

Arrival: TypeAlias = Literal["mean", "root", "walk"]


class CFL(fl.ClientModule):
    """FedAvg with a model for each cluster of clients; clusters are found by splitting.

    All clients start in one cluster. A cluster splits in two if the mean of its clients' changes is
    small (norm below ``eps1``) although some changes are large (above ``eps2``): the model has
    converged, but the clients disagree. Cosine similarities of the changes determine the halves.
    The network travels both ways, and nothing stays.

    Both thresholds depend on the network, the learning rate and the epochs; the server reports the
    norms of each cluster.

    Args:
        net: The network.
        eps1: Norm of the mean change below which a cluster may split.
        eps2: Norm that the longest change must exceed.
        min_size: A cluster must have more clients than this to split.
        start_round: A cluster splits only after this round.
        linkage: Rule for merging groups until two are left: ``complete`` as in the authors' code,
            ``single`` for the paper's optimal division. See
            :func:`~lightning_modules.steps.halves.halves`.
        gamma_max: gamma, the paper's further test of the halves, off at 0. See
            :class:`~lightning_modules.steps.halves.Splitting`.
        stale: Whether absent clients count with their last change, so that a cluster can split
            after any round; the server then stores a change for each client. Otherwise it splits
            only after a round in which all take part.
        newcomers: Model of a newcomer: the ``mean`` of the models of all clusters, weighted by
            their numbers of clients; the model before the first split (``root``); or, as in the
            paper, the model found by walking down the tree of splits (``walk``): the newcomer
            trains the ``root`` once and moves at each split to the half with the most similar
            change. The server then stores the changes of every split.
        weighting: Weights in a cluster's average; ``uniform`` in paper and code.
        options: See :class:`ClientModule`.

    Raises:
        ValueError: A number is negative.
    """

    record = fl.MethodRecord(
        name="CFL",
        family="A separate network for each client or group",
        travels="network of the cluster",
        apart="clusters split where clients' changes point in opposite directions",
        paper=fl.Paper(
            (
                "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task "
                "Optimization Under Privacy Constraints"
            ),
            "Sattler, Felix and Müller, Klaus-Robert and Samek, Wojciech",
            "TNNLS",
            2020,
            "https://arxiv.org/abs/1910.01991",
            full_venue="IEEE Transactions on Neural Networks and Learning Systems",
        ),
    )

    global_model = False
    vectorizable = True

    def __init__(
        self,
        net: nn.Module,
        *,
        eps1: fl.NotNegative[float] = 0.4,
        eps2: fl.NotNegative[float] = 1.6,
        min_size: fl.NotNegative[int] = 2,
        start_round: fl.NotNegative[int] = 20,
        linkage: Linkage = "complete",
        gamma_max: fl.NotNegative[float] = 0.0,
        stale: bool = False,
        newcomers: Arrival = "mean",
        weighting: Literal["samples", "uniform"] = "uniform",
        **options: Any,
    ) -> None:
        super().__init__(net, weighting=weighting, **options)
        self.splitting = Splitting(eps1, eps2, min_size, start_round, linkage, gamma_max)
        self.stale, self.newcomers = stale, newcomers

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return both thresholds, around the authors'."""
        return (
            fl.Dimension("eps1", 0.04, 4.0, log=True),
            fl.Dimension("eps2", 0.16, 16.0, log=True),
        )

    def introduce(self) -> fl.Plan:
        """Declare a local round, whose change selects the path down the tree."""
        return self.plan() if self.newcomers == "walk" else ()

    def server(self) -> fl.Server[Any]:
        """Return a server that splits clusters."""
        names = tuple(f"net.{name}" for name, _ in self.net.named_parameters())
        return CFLServer(
            self.weighting,
            splitting=self.splitting,
            parameters=names,
            stale=self.stale,
            newcomers=self.newcomers,
        )


@dataclass(frozen=True, kw_only=True)
class CFLState(fl.ServerState):
    """A model for each cluster, and each client's cluster; ``shared`` is the first model.

    Attributes:
        root: The model before the first split.
        last: (P,) the last change of each client that sent one, if they are stored.
        splits: All splits, if they are stored.
    """

    models: list[fl.State]
    cluster: tuple[int, ...]
    root: fl.State
    last: dict[int, Tensor] = field(default_factory=dict)
    splits: list[Split] = field(default_factory=list)


@dataclass(eq=False)
class CFLServer(fl.Server[CFLState]):
    """A server that averages each cluster, and splits clusters.

    Attributes:
        splitting: The rule for splits.
        parameters: Names of the entries that are compared.
        stale, newcomers: As in CFL.
    """

    reports: ClassVar = {"cluster": "number of the cluster"}
    splitting: Splitting = field(kw_only=True)
    parameters: fl.Patterns = field(kw_only=True)
    stale: bool = field(default=False, kw_only=True)
    newcomers: Arrival = field(default="mean", kw_only=True)

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> CFLState:
        """Put all clients with training data into one cluster."""
        cluster = tuple(0 if client.samples else -1 for client in clients)
        return CFLState(shared=shared, models=[shared], cluster=cluster, root=shared)

    def broadcast(self, state: CFLState, client: int, round: int) -> fl.Broadcast:
        """Return the model of the client's cluster, or the first if it has no data."""
        return fl.Broadcast(shared=state.models[max(0, state.cluster[client])])

    def welcome(
        self,
        state: CFLState,
        info: fl.ClientInfo,
        members: Sequence[fl.ClientInfo],
        upload: fl.Upload | None = None,
    ) -> tuple[fl.Broadcast, fl.State]:
        """Return the mean of the models, the first one, or that of the newcomer's cluster."""
        if self.newcomers == "mean":
            sizes = torch.tensor([float(state.cluster.count(n)) for n in range(len(state.models))])
            return fl.Broadcast(shared=fl.weighted_mean(state.models, sizes / sizes.sum())), {}
        if upload is None:
            return fl.Broadcast(shared=state.root), {}
        change = changes_of([upload.shared], state.root, self.parameters)
        return fl.Broadcast(shared=state.models[walked(change, state.splits)]), {}

    def begin(self, state: CFLState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Hold all uploads: whose models are averaged depends on all changes."""
        return {"uploads": fl.Uploads()}

    def finish(self, state: CFLState, folded: fl.Folded) -> CFLState:
        """Return the state with split clusters and their new models."""
        last, uploads = dict(state.last), folded["uploads"]
        for upload in uploads:
            model = state.models[state.cluster[upload.client]]
            (last[upload.client],) = changes_of([upload.shared], model, self.parameters)
        after = self._split(state, last)
        models = [*after.models]
        for number in range(len(models)):
            own = [upload for upload in uploads if after.cluster[upload.client] == number]
            if own:
                models[number] = fl.weighted_mean([one.shared for one in own], self.shares(own))
        return replace(
            after,
            shared=models[0],
            models=models,
            root=models[0] if len(models) == 1 else state.root,
            last=last if self.stale else {},
            client_report={"cluster": {u.client: float(after.cluster[u.client]) for u in uploads}},
        )

    def _split(self, state: CFLState, last: Mapping[int, Tensor]) -> CFLState:
        """Return the state with new clusters, which start from the models of those they leave.

        Args:
            state: The state.
            last: (P,) the last change of each client; a cluster may split if all are known.
        """
        cluster, models, splits = [*state.cluster], [*state.models], [*state.splits]
        report: dict[str, float] = {}
        for number, model in enumerate(state.models):
            members = [client for client, own in enumerate(state.cluster) if own == number]
            if not last.keys() >= {*members}:
                continue
            changes = torch.stack([last[client] for client in members])
            report[f"mean_norm_{number}"] = float(changes.mean(0).norm())
            report[f"max_norm_{number}"] = float(changes.norm(dim=1).max())
            left = torch.tensor(self.splitting.leaves(changes, state.round + 1))
            if not left.any():
                continue
            for place in left.nonzero()[:, 0].tolist():
                cluster[members[place]] = len(models)
            if self.newcomers == "walk":
                splits.append((number, len(models), changes[~left], changes[left]))
            models.append(model)
        report["clusters"] = len(models)
        return replace(state, cluster=tuple(cluster), models=models, splits=splits, report=report)
