"""FedAS as in its released code: each client receives the backbone aligned by the previous one.

"FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024. The released code
aligns the server's tensors in place, one client after another, and excludes the short last batch
from the class means and the Fisher trace.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from datamodules import Digits, Dirichlet
from lightning_modules import MLP, FedAS
from lightning_modules.layers import frozen
from lightning_modules.nets import SplitNet
from pfl import FederatedLoop
from pfl.core.types import Job, Result
from pfl.engines.sequential import SequentialEngine
from pfl.federation.sampling import UniformSampler
from pfl.method import Batch, Pass, Phase, Plan, State, Totals


class FedASAsReleased(FedAS):
    """FedAS that stores its aligned backbone for the next client, and sums only full batches."""

    kept = (*FedAS.kept, "aligned.*")
    vectorizable = False

    def __init__(self, net: SplitNet, *, batch_size: int, **options: Any) -> None:
        super().__init__(net, **options)
        self.batch_size = batch_size
        self.aligned = frozen(net.backbone)

    def plan(self) -> Plan:
        """Declare FedAS's parts, without short batches in sums, and store the aligned backbone."""
        parts: list[Phase | Pass] = []
        for part in super().plan():
            if isinstance(part, Pass) and part.statistic is not None:
                part = replace(part, statistic=partial(self._whole, part.statistic))
            parts.append(part)
            if part.name == "align":
                parts.append(Pass(name="hand_on", then=self._aligned))
        return parts

    def _whole(self, statistic: Callable[[Batch], State], batch: Batch) -> State:
        whole = len(batch.y) == self.batch_size
        return {name: value * whole for name, value in statistic(batch).items()}

    def _aligned(self, totals: Totals) -> State:
        backbone = self.net.backbone.state_dict()
        return {f"aligned.module.{name}": value for name, value in backbone.items()}


class HandingOn(SequentialEngine):
    """An engine that passes each client's aligned backbone on to the next client."""

    def train(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Run each client's round."""
        aligned: State = {}
        for job in jobs:
            sent = job.broadcast
            if sent is not None:
                sent = replace(sent, shared={**sent.shared, **aligned})
            (result,) = super().train([replace(job, broadcast=sent)])
            aligned = {
                name.replace("aligned.module.", "net.backbone."): value
                for name, value in result.kept.items()
                if name.startswith("aligned.")
            }
            yield result


def method(data: Digits) -> FedASAsReleased:
    """Return the method with a small network for vectors."""
    net = MLP(data.outputs, data.input_shape, hidden=64)
    return FedASAsReleased(net, batch_size=16, optimizer=partial(torch.optim.SGD, lr=0.005))


if __name__ == "__main__":
    data = Digits(
        num_clients=20, partition=Dirichlet(0.1), batch_size=16, shuffle=False, drop_last=True
    )
    accuracy = {}
    for name, engine in (("a copy each", SequentialEngine()), ("as released", HandingOn())):
        loop = FederatedLoop(5, seed=42, engine=engine, sampler=UniformSampler(0.2), progress=False)
        run = loop.fit(method, data)
        accuracy[name] = run.summary["test/personal/acc_weighted/last"]
    print(accuracy)
