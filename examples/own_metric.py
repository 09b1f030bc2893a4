"""Your own metric and callback: a score of each model, and a line after each round."""

from functools import partial

import torch
from torch import Tensor
from torchmetrics import Metric

from datamodules import Digits, Dirichlet
from lightning_modules import MLP, FedPer
from pfl import Callback, FederatedLoop
from pfl.core.seeds import scoped
from pfl.core.types import RoundResult
from pfl.federation.run import Run


class Certainty(Metric):
    """Mean predicted probability of the true class."""

    higher_is_better = True
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Add (n, C) probabilities of a model and (n,) classes."""
        self.total += predictions.gather(1, targets[:, None]).sum()
        self.count += len(targets)

    def compute(self) -> Tensor:
        """Return the mean."""
        return self.total / self.count


class Laggards(Callback):
    """Prints the client with the lowest accuracy after each tested round."""

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Read the rows of the clients; a callback does not change the run."""
        if result.evaluated:
            last = min(result.clients, key=lambda row: row["test/personal/acc"])
            accuracy = last["test/personal/acc"]
            print(f"round {result.round}: client {last['client']:.0f} has {accuracy:.2f}")


certainty = f"{__name__}.Certainty"  # metrics are given by import path
data = Digits(num_clients=5, partition=Dirichlet(0.3), batch_size=16, metrics=[certainty])
with scoped(1):
    net = MLP(data.outputs, data.input_shape, hidden=32)
method = FedPer(net, optimizer=partial(torch.optim.SGD, lr=0.1))
run = FederatedLoop(rounds=6, callbacks=[Laggards()], progress=False).fit(method, data)
print(f"certainty {run.summary['test/personal/certainty/last']:.2f}, mean over clients")
