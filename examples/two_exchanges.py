"""Two exchanges in a round: clients first send class means, and then train towards the merged ones.

A round of the loop has one broadcast and one upload, so that a round of the method takes two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from datamodules import Digits, Dirichlet
from lightning_modules import MLP
from lightning_modules.base import SplitNet
from lightning_modules.losses import prototype_mse
from lightning_modules.steps.prototypes import (
    ClassMeans,
    class_means,
    class_sums,
    mask_unknown,
    unknown_prototypes,
)
from pfl import FederatedLoop
from pfl.core.types import Cohort
from pfl.federation.sampling import UniformSampler
from pfl.method import (
    Batch,
    ClientInfo,
    ClientModule,
    Folded,
    Folds,
    Pass,
    Phase,
    Plan,
    Server,
    ServerState,
    State,
    Terms,
    Totals,
    Upload,
    generator,
    scoped,
)


def asks(round: int) -> bool:
    """Return ``True`` for a round of the loop that is the first of two."""
    return round % 2 == 1


class AsksFirst(Server):
    """Averages class means in the first of two rounds, and weights in the second."""

    def begin(self, state: ServerState, senders: Sequence[ClientInfo]) -> Folds:
        """Declare what becomes of the uploads."""
        if not asks(state.round + 1):
            return super().begin(state, senders)
        return {"merged": ClassMeans(state.shared["merged"], _table)}

    def finish(self, state: ServerState, folded: Folded) -> ServerState:
        """Replace what the uploads of this round were about."""
        new = {"merged": folded["merged"]} if asks(state.round + 1) else folded.mean
        return replace(state, shared={**state.shared, **new})


def _table(upload: Upload) -> tuple[Tensor, Tensor]:
    return upload.shared["merged"], upload.extra["counts"]


class FreshMeans(ClientModule):
    """Pulls features to the class means of all clients, which are those of the received network."""

    shared = ("net.*", "merged")
    extra = ("counts",)
    needs = ("classes", "outputs")
    vectorizable = True
    net: SplitNet

    def __init__(self, net: SplitNet, **options: Any) -> None:
        super().__init__(net, **options)
        size = net.num_classes, net.features
        self.merged = torch.nn.Buffer(unknown_prototypes(*size))
        self.means = torch.nn.Buffer(torch.zeros(size))
        self.counts = torch.nn.Buffer(torch.zeros(net.num_classes))

    def plan(self) -> Plan:
        """Declare the answer to the first question, and the training of the second."""
        return [
            Pass(
                name="means",
                statistic=self._sums,
                then=self._means,
                when=lambda own, info: asks(info.round),
            ),
            Phase(
                name="local",
                objective=self.losses,
                epochs=lambda own, info: 0 if asks(info.round) else self.epochs,
            ),
        ]

    def losses(self, batch: Batch) -> Terms:
        """Return the loss, and the distance of the features from the merged means."""
        z = self.net.backbone(batch.x)
        apart = prototype_mse(z, batch.y, *mask_unknown(self.merged), batch.weight)
        return {**self.supervised(self.net.head(z), batch), "pull": apart}

    def upload(self, info: ClientInfo) -> Upload:
        """Send means in the first round of two, weights in the second."""
        found = super().upload(info)
        if asks(info.round):
            return replace(found, shared={"merged": self.means.clone()})
        weights = {name: v for name, v in found.shared.items() if name != "merged"}
        return replace(found, shared=weights, extra={})

    def server(self) -> AsksFirst:
        """Return a server that asks twice."""
        return AsksFirst()

    def _sums(self, batch: Batch) -> State:
        z = self.net.backbone(batch.x)
        sums, counts = class_sums(z, batch.y, self.net.num_classes, batch.weight)
        return {"sums": sums, "counts": counts}

    def _means(self, totals: Totals) -> State:
        sums, counts = totals.sums["sums"], totals.sums["counts"]
        return {"means": class_means(sums, counts), "counts": counts}


@dataclass(frozen=True)
class InPairs(UniformSampler):
    """Draws the clients of every two rounds together."""

    seed: int = 0

    def __call__(self, clients: Sequence[int], rng: torch.Generator, round: int) -> Cohort:
        """Return the clients of a round."""
        return super().__call__(clients, generator(self.seed, "pair", (round + 1) // 2), round)


data = Digits(num_clients=10, partition=Dirichlet(0.3), batch_size=16)
with scoped(1):
    net = MLP(data.outputs, data.input_shape)
method = FreshMeans(net, optimizer=partial(torch.optim.SGD, lr=0.1), epochs=5)
# Complete rounds alone are tested; ``rounds`` counts those of the loop.
loop = FederatedLoop(rounds=8, evaluate_every=2, sampler=InPairs(0.5), progress=False)
run = loop.fit(method, data)
print(f"{run.summary['test/personal/acc/last']:.3f} after {run.round // 2} rounds of two exchanges")
