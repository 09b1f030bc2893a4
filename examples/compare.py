"""Two methods on the same splits, networks and rounds, compared by paired tests."""

from functools import partial

import numpy as np
import torch

from datamodules import ByDomain, Synthetic
from lightning_modules import MLP, FedAvg, FedPer
from lightning_modules.base import ClientModule
from pfl import FederatedLoop
from pfl.core.seeds import scoped
from pfl.results.paired import paired

SEEDS = (0, 1, 2)


def scores(kind: type[ClientModule], seed: int) -> list[float]:
    """Return the accuracy of each client's model on its own test samples."""
    data = Synthetic(
        samples=640,
        num_clients=8,
        partition=ByDomain(),
        concept_shift=1.0,  # the same pattern bears another label with each client
        noise=0.3,
        data_seed=seed,
        split_seed=seed,
        batch_size=16,
    )
    with scoped(seed):
        net = MLP(data.outputs, data.input_shape, hidden=16)
    method = kind(net, optimizer=partial(torch.optim.SGD, lr=0.1))
    run = FederatedLoop(rounds=14, seed=seed, progress=False).fit(method, data)
    assert run.latest is not None
    return [row["test/personal/acc"] for row in run.latest.clients]


ours, theirs = (np.array([scores(kind, seed) for seed in SEEDS]) for kind in (FedPer, FedAvg))
clients = paired(ours.mean(0), theirs.mean(0))  # (seeds, clients) -> a pair a client
seeds = paired(ours.mean(1), theirs.mean(1))  # ... a pair a seed
print(f"FedPer {ours.mean():.3f}, FedAvg {theirs.mean():.3f}")
for over, test in (("clients", clients), ("seeds", seeds)):
    assert test is not None
    print(
        f"over {test.pairs} {over}: {test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}], "
        f"d {test.effect:.1f}, p {test.p:.4f}, {test.better} better and {test.worse} worse"
    )
