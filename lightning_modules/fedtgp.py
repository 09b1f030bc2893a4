"""FedTGP: FedProto with global prototypes that the server trains to be well separated.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024, arXiv 2401.03230; the
authors' released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules import base as fl
from lightning_modules.fedproto import FedProto


class FedTGP(FedProto):
    """FedProto with global prototypes that the server trains by a contrastive loss.

    Clients train, upload and are tested as in FedProto. On the server the prototype of a class is
    the output of a small network for an embedding of the class. Both are trained on the uploaded
    class means, so that each is nearest to the prototype of its class, by a margin. The margin is
    the largest distance of a class's mean from its nearest other class, at most ``margin``. Classes
    that no client has get a prototype, too.

    Args:
        net: As in :class:`~lightning_modules.fedproto.FedProto`.
        prototype_weight: lambda, the weight of the distance from the global prototypes.
        margin: tau, the largest margin.
        server_epochs: S, epochs of the server over the uploaded means. The authors use 100; their
            text recommends 1000 or more.
        server_lr: Learning rate of the server; the authors use the clients' rate.
        server_batch: Batch size of the server, in means.
        proto_model: Whether a client's means are those of its ``trained`` model, or of its model at
            the start of the round (``received``), as in the authors' code.
        options: See :class:`~lightning_modules.base.ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedTGP",
        family="Prototypes and distributions",
        travels="prototypes",
        stays="network",
        apart="the server trains prototypes that lie apart",
        paper=fl.Paper(
            (
                "{FedTGP}: Trainable Global Prototypes with Adaptive-Margin-Enhanced "
                "Contrastive Learning for Data and Model Heterogeneity in Federated Learning"
            ),
            "Zhang, Jianqing and Liu, Yang and Hua, Yang and Cao, Jian",
            "AAAI",
            2024,
            "https://arxiv.org/abs/2401.03230",
        ),
    )

    extra: tuple[str, ...] = ("classes", "means")

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        prototype_weight: float = 10.0,
        margin: fl.NotNegative[float] = 100.0,
        server_epochs: fl.NotNegative[int] = 100,
        server_lr: fl.NotNegative[float] = 0.01,
        server_batch: fl.AtLeastOne = 10,
        proto_model: Literal["trained", "received"] = "trained",
        **options: Any,
    ) -> None:
        super().__init__(net, prototype_weight=prototype_weight, **options)
        self.of_server = server_lr, server_epochs, server_batch, margin
        self.proto_model = proto_model

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return lambda up to the authors' value, and S from theirs upwards."""
        return (
            fl.Dimension("prototype_weight", 0.1, 10.0, log=True),
            fl.Dimension("server_epochs", choices=(100, 1000)),
        )

    def plan(self) -> fl.Plan:
        """Declare training, and a pass for the class means after or before it."""
        plan = super().plan()
        return plan if self.proto_model == "trained" else plan[::-1]

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return one row for each of the client's classes: C_i (D + 1) numbers."""
        return fl.means_upload(self.means, info)

    def server(self) -> fl.Server[Any]:
        """Return a server that trains prototypes."""
        return FedTGPServer(self.weighting, *self.of_server)


@dataclass(frozen=True, kw_only=True)
class FedTGPState(fl.ServerState):
    """The prototypes, and in ``trained`` the embeddings and network that generate them."""

    trained: fl.State


@dataclass(eq=False)
class FedTGPServer(fl.MeansServer[FedTGPState]):
    """A server that trains class prototypes; its arguments are those of :class:`FedTGP`."""

    margin: float = 100.0

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> FedTGPState:
        """Draw the embeddings (C, D) and the network."""
        like = shared["prototypes"]
        size = like.shape[1]
        with fl.scoped(fl.derive(self.seed, "prototypes")):
            net = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
            drawn = {"embedding": torch.randn(like.shape), **net.state_dict()}
        return FedTGPState(shared=shared, trained={n: v.to(like) for n, v in drawn.items()})

    def finish(self, state: FedTGPState, folded: fl.Folded) -> FedTGPState:
        """Return the state with prototypes trained on the uploaded means."""
        table = state.trained["embedding"]
        means, classes = fl.uploaded_means(folded["means"], table)
        gaps = fl.class_gaps(means, classes, len(table))
        margin = min(float(gaps.max()), self.margin)

        def loss(trained: fl.State, means: Tensor, classes: Tensor) -> Tensor:
            return fl.prototype_contrast(means, classes, _prototypes(trained), margin)

        rows, orders = (means, classes), self.orders(len(means), state.round)
        descend = fl.descent(loss, self.server_lr)
        trained, mean = self.descended(state.trained, descend, rows, orders)
        report = {"prototype_loss": mean, "margin": margin}
        shared = {"prototypes": _prototypes(trained)}
        return replace(state, shared=shared, trained=trained, report=report)


def _prototypes(trained: fl.State) -> Tensor:
    """Return the (C, D) prototypes, the network's outputs for the embeddings."""
    hidden = F.linear(trained["embedding"], trained["0.weight"], trained["0.bias"]).relu()
    return F.linear(hidden, trained["2.weight"], trained["2.bias"])
