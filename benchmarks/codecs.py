"""Accuracy against bytes on the digits, for FedAvg and FedPer with each codec.

``python -m benchmarks.codecs`` prints the table of docs/communication.md, of 42 short runs.
"""

from __future__ import annotations

from functools import partial

import torch

from datamodules import Digits, Dirichlet
from lightning_modules import MLP, FedAvg, FedPer
from pfl import FederatedLoop
from pfl.core.seeds import derive, scoped
from pfl.extras.codecs import QSGD, Codecs, RandK, TopK
from pfl.federation.cost import Cost, LogNormal

ROUNDS, SEEDS = 20, (1, 2, 3)
CODECS = {
    "`identity`": Codecs(),
    "`cast` both ways": Codecs(up="cast", down="cast"),
    "`qsgd`, 4 bits": Codecs(up=QSGD(bits=4)),
    "`topk`, 10 %": Codecs(up=TopK(share=0.1)),
    "`topk`, 1 %": Codecs(up=TopK(share=0.01)),
    "`randk`, 10 %": Codecs(up=RandK(share=0.1)),
    "`sign`": Codecs(up="sign"),
}
# A slow uplink, as at home: 100 kB and 1 MB a second, in the median.
COST = Cost(up=LogNormal(1e5), down=LogNormal(1e6), speed=LogNormal(1e3))


def run(method: type[FedAvg] | type[FedPer], codecs: Codecs, seed: int) -> dict[str, float]:
    """Return a run's numbers: accuracy, bytes up and down of a client's round, seconds."""
    data = Digits(num_clients=10, partition=Dirichlet(0.1), batch_size=16, split_seed=seed)
    with scoped(derive(seed, "init")):
        net = MLP(data.outputs, data.input_shape, hidden=64)
    module = method(net, optimizer=partial(torch.optim.SGD, lr=0.1), epochs=2)
    loop = FederatedLoop(ROUNDS, seed=seed, uplink=[codecs], cost=COST, progress=False)
    history = loop.fit(module, data).history
    clients = ROUNDS * data.num_clients
    return {
        "acc": history[-1]["test/personal/acc"],
        "up": sum(row["comm/bytes_up"] for row in history) / clients,
        "down": sum(row["comm/bytes_down"] for row in history) / clients,
        "seconds": history[-1]["comm/seconds_total"],
    }


def main() -> None:
    """Print the table."""
    print("| codec | method | accuracy (%) | kB up | kB down | simulated seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for method in (FedAvg, FedPer):
        for name, codecs in CODECS.items():
            found = [run(method, codecs, seed) for seed in SEEDS]
            mean = {key: sum(one[key] for one in found) / len(found) for key in found[0]}
            scores = torch.tensor([100 * one["acc"] for one in found])
            print(
                f"| {name} | {method.__name__} | {scores.mean():.1f} ± {scores.std():.1f} "
                f"| {mean['up'] / 1e3:.2f} | {mean['down'] / 1e3:.2f} | {mean['seconds']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
