"""FedDBE: a private offset for each client's features, whose mean is kept near a common one.

Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS
2023, arXiv 2311.14975; the authors' code and PFLlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from lightning_modules import base as fl


class FedDBE(fl.ClientModule):
    """FedAvg with a private offset between backbone and head, and features pulled to one mean.

    ``memory`` (m_i) is added to the features and trained with the network, but stays with the
    client. The mean features r of its batches are pulled towards the mean over clients, g, by
    ``kappa / D sum_d (r_d - g_d)^2 / 2``, which trains only the backbone.

    The first round of a run only computes g: each client trains the network without offset and pull
    and sends its mean features, and the trained networks are discarded, so a run needs one more
    round. g is the mean over that round's participants (the authors: all clients, even if never
    sampled), and never changes.

    Args:
        net: A ``SplitNet`` with features (B, D).
        kappa: Weight of this term. The authors use 50 for Fashion-MNIST; PFLlib's default is 0.
        beta: Weight of a batch in the running mean, ``r <- (1 - beta) r + beta mean``, which starts
            at 0 in each round (the authors' momentum; 1 uses the last batch only).
        options: See :class:`ClientModule`.

    Raises:
        TypeError: ``net`` has no backbone or no head.
        ValueError: A number is out of range.
    """

    record = fl.MethodRecord(
        name="FedDBE",
        family="A part of the network stays with the client",
        travels="network; mean features once",
        stays="offset of features",
        apart="a private offset between backbone and head, and features pulled to a common mean",
        paper=fl.Paper(
            "Eliminating Domain Bias for Federated Learning in Representation Space",
            (
                "Zhang, Jianqing and Hua, Yang and Cao, Jian and Wang, Hao and Song, Tao and "
                "Xue, Zhengui and Ma, Ruhui and Guan, Haibing"
            ),
            "NeurIPS",
            2023,
            "https://arxiv.org/abs/2311.14975",
        ),
    )

    kept = ("memory",)
    extra = ("running",)
    vectorizable = True
    needs = ("parts", "outputs")
    net: fl.SplitNet

    def __init__(
        self,
        net: fl.SplitNet,
        *,
        kappa: fl.NotNegative[float] = 50.0,
        beta: Annotated[float, fl.Range("(0, 1]")] = 1.0,
        **options: Unpack[fl.ClientOptions],
    ) -> None:
        super().__init__(net, **options)
        self.kappa, self.beta = kappa, beta
        self.memory = nn.Parameter(torch.zeros(net.features))
        self.running = nn.Buffer(torch.zeros(net.features))
        # Unknown in the first round.
        self.consensus = nn.Buffer(torch.full((net.features,), torch.nan))

    @classmethod
    def space(cls) -> Sequence[fl.Dimension]:
        """Return kappa and beta, which the authors search for each data set."""
        return (
            fl.Dimension("kappa", choices=(1.0, 5.0, 10.0, 50.0, 100.0)),
            fl.Dimension("beta", choices=(0.1, 0.5, 1.0)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) logits of the features with the offset."""
        logits: Tensor = self.net.head(self.net.backbone(x) + self.memory)
        return logits

    def plan(self) -> fl.Plan:
        """Declare plain training, used until the mean is known, and the usual training."""
        return [
            fl.Phase(
                name="mean",
                objective=lambda batch: self._step(batch, pulled=False),
                epochs=lambda own, info: self.epochs if unknown(own) else 0,
                trains=("net.*",),
            ),
            fl.Phase(
                name="local",
                objective=lambda batch: self._step(batch, pulled=True),
                epochs=lambda own, info: 0 if unknown(own) else self.epochs,
            ),
        ]

    def upload(self, info: fl.ClientInfo) -> fl.Upload:
        """Return the network; in the first round the mean features instead."""
        sent = super().upload(info)
        first = unknown({"consensus": self.consensus})
        return replace(sent, shared={}) if first else replace(sent, extra={})

    def load_global(self, broadcast: fl.Broadcast) -> None:
        """Load the global network, without an offset."""
        super().load_global(broadcast)
        fl.assign(self, {"memory": torch.zeros_like(self.memory)})

    def server(self) -> fl.Server[DBEState]:
        """Return a server that first computes the common mean."""
        return DBEServer(self.weighting)

    def _step(self, batch: fl.Batch, pulled: bool) -> fl.Outcome:
        z = self.net.backbone(batch.x)
        weight = torch.ones_like(z[:, 0]) if batch.weight is None else batch.weight.to(z)
        mean = weight @ z / weight.sum().clamp_min(1)
        running = (1 - self.beta) * self.running + self.beta * mean
        terms = self.supervised(self.net.head(z + self.memory), batch)
        if pulled:
            apart = (running - self.consensus).square().mean() / 2
            terms = {**terms, "pull": self.kappa * apart}
        return fl.Outcome(terms, {"running": running.detach()})


def unknown(own: fl.State) -> bool:
    """Return ``True`` if these entries of a client lack the common mean."""
    return bool(own["consensus"].isnan().any())


@dataclass(frozen=True, kw_only=True)
class DBEState(fl.ServerState):
    """The network, and the common mean of the features.

    Attributes:
        consensus: (D,) g; empty before the first round.
    """

    consensus: fl.State


class DBEServer(fl.Server[DBEState]):
    """A server that averages the clients' features once, and then networks."""

    def init(self, shared: fl.State, clients: Sequence[fl.ClientInfo]) -> DBEState:
        """Return the initial state, in which no mean is known."""
        return DBEState(shared=shared, consensus={})

    def broadcast(self, state: DBEState, client: int, round: int) -> fl.Broadcast:
        """Return the network, and the common mean if it is known."""
        return fl.Broadcast(state.shared, state.consensus)

    def begin(self, state: DBEState, senders: Sequence[fl.ClientInfo]) -> fl.Folds:
        """Declare the features in the first round with uploads, later the mean of networks."""
        if state.consensus:
            return super().begin(state, senders)
        return {"features": fl.Uploads(shared=(), extra=("running",))}

    def finish(self, state: DBEState, folded: fl.Folded) -> DBEState:
        """Average features in the first round with uploads, later networks."""
        if state.consensus:
            return super().finish(state, folded)
        features = fl.received(folded["features"], "running")
        mean = folded.shares.to(features) @ features
        report = self.reported(folded)
        return replace(state, consensus={"consensus": mean}, client_report=report)
