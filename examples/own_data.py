"""Your own data set: tensors with natural clients, for a method with local heads."""

from functools import partial
from typing import Any

import torch

from datamodules import ByDomain, TensorData
from lightning_modules import MLP, FedPer
from pfl import FederatedLoop
from pfl.core.seeds import scoped


class Sensors(TensorData):
    """Signals of machines; each machine is a client with its own normal behaviour.

    Args:
        per_machine: Number of signals per machine.
        options: See :class:`TensorData`.
    """

    def __init__(self, per_machine: int = 60, **options: Any) -> None:
        super().__init__("", **options)
        self.per_machine = per_machine

    def read(self) -> dict[str, Any]:
        """Return inputs, targets and clients; replace the random numbers by your own tensors."""
        rng = torch.Generator().manual_seed(0)
        machine = torch.arange(self.num_clients).repeat_interleave(self.per_machine)
        signals = torch.randn(len(machine), 3, 32, generator=rng)
        threshold = 0.1 * torch.randn(self.num_clients, generator=rng)
        anomalous = signals.mean(dim=(1, 2)) > threshold[machine]
        return {
            "x": signals,  # (n, 3, 32): floats of any shape stay as they are
            "y": anomalous.long(),  # (n,) integers are classes
            "client": machine.tolist(),  # read by the partition ByDomain
        }


data = Sensors(num_clients=6, partition=ByDomain(), test_fraction=0.25, batch_size=16)
with scoped(1):
    net = MLP(data.outputs, data.input_shape, hidden=16)
method = FedPer(net, optimizer=partial(torch.optim.SGD, lr=0.1), epochs=3)
run = FederatedLoop(rounds=10, progress=False).fit(method, data)
for client in range(data.num_clients):
    print(f"machine {client}: {len(data.split(client, 'train'))} signals to train on")
print(f"accuracy {run.summary['test/personal/acc/last']:.2f}, mean over machines")
