"""Attackers and robust aggregation as steps of the uplink, and the effect on other clients.

Three of ten clients send their weights with the wrong sign. The server takes the plain mean, the
median of each weight, or the mean of the uploads with the closest neighbours (multi-Krum, Blanchard
et al., "Machine Learning with Adversaries", NeurIPS 2017). Scores are means over benign clients, of
FedAvg's single network and of Ditto's personal networks, which are pulled to it (Li et al.,
"Ditto", ICML 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from datamodules import Digits, Dirichlet
from lightning_modules import MLP, Ditto, FedAvg
from pfl import FederatedLoop
from pfl.core.types import Job, Result
from pfl.method import ClientModule, ServerState, Upload
from pfl.training.uplink import UplinkStep

Merge = Callable[[ServerState, list[Upload]], ServerState]


@dataclass(frozen=True)
class SignFlip(UplinkStep):
    """Make some clients send the negative of their weights."""

    clients: tuple[int, ...]

    def sent(self, job: Job, result: Result) -> Result:
        """Return the result with flipped signs."""
        if result.upload is None or job.info.client not in self.clients:
            return result
        flipped = {name: -value for name, value in result.upload.shared.items()}
        return replace(result, upload=replace(result.upload, shared=flipped))


@dataclass(frozen=True)
class Median(UplinkStep):
    """Take the median of each weight over the clients."""

    def merge(self, state: ServerState, uploads: list[Upload], aggregate: Merge) -> ServerState:
        """Aggregate copies of the median."""
        sent = {name: [one.shared[name] for one in uploads] for name in uploads[0].shared}
        middle = {name: torch.stack(values).median(0).values for name, values in sent.items()}
        return aggregate(state, [replace(one, shared=middle) for one in uploads])


@dataclass(frozen=True)
class MultiKrum(UplinkStep):
    """Take the mean of the uploads whose nearest neighbours are closest.

    Attributes:
        attackers: Number f of attackers that the rule tolerates.
    """

    attackers: int

    def merge(self, state: ServerState, uploads: list[Upload], aggregate: Merge) -> ServerState:
        """Aggregate n - f of n uploads, by the distance to their n - f - 2 nearest."""
        rows = [torch.cat([v.flatten() for v in one.shared.values()]) for one in uploads]
        apart, count = torch.cdist(torch.stack(rows), torch.stack(rows)) ** 2, len(uploads)
        near = apart.sort(1).values[:, 1 : max(2, count - self.attackers - 1)]
        chosen = near.sum(1).argsort()[: max(1, count - self.attackers)].sort().values
        return aggregate(state, [uploads[number] for number in chosen.tolist()])


ATTACKERS = (0, 4, 7)
RULES: dict[str, list[UplinkStep]] = {
    "no attack": [],
    "mean": [SignFlip(ATTACKERS)],
    "median": [SignFlip(ATTACKERS), Median()],
    "multi-Krum": [SignFlip(ATTACKERS), MultiKrum(len(ATTACKERS))],
}


def benign(method: type[ClientModule], steps: list[UplinkStep], data: Digits) -> float:
    """Return the mean personal accuracy of benign clients, in per cent."""

    def make(data: Digits) -> ClientModule:
        optimizer = partial(torch.optim.SGD, lr=0.1)
        return method(MLP(10, data.input_shape), optimizer=optimizer, epochs=2)

    run = FederatedLoop(10, uplink=steps, progress=False).fit(make, data)
    rows = run.latest.clients if run.latest else ()
    scores = [row["test/personal/acc"] for row in rows if row["client"] not in ATTACKERS]
    return 100 * sum(scores) / len(scores)


digits = Digits(num_clients=10, partition=Dirichlet(alpha=0.5))
digits.setup()
scores = {
    name: [benign(method, steps, digits) for method in (FedAvg, Ditto)]
    for name, steps in RULES.items()
}
print("             FedAvg   Ditto")
for name, (one, own) in scores.items():
    print(f"{name:12}{one:7.1f}{own:8.1f}")
