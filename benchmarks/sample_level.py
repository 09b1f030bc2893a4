"""Accuracy against epsilon of single samples on the digits, for Local, FedAvg and FedPer.

``python -m benchmarks.sample_level`` prints the table of docs/privacy.md, of 24 short runs.
"""

from __future__ import annotations

from functools import partial

import torch

from datamodules import Digits, Dirichlet
from lightning_modules import MLP, FedAvg, FedPer, Local
from pfl import FederatedLoop
from pfl.core.client import ClientModule
from pfl.core.seeds import derive, scoped
from pfl.extras.privacy.privacy import Privacy

ROUNDS, SEEDS, DELTA = 20, (1, 2), 1e-3
SIGMAS = (None, 0.0, 1.0, 2.0)


def run(method: type[ClientModule], sigma: float | None, seed: int) -> tuple[float, str]:
    """Return a run's accuracy, and what its header says of privacy; no sigma is no clip either."""
    data = Digits(num_clients=5, partition=Dirichlet(0.5), batch_size=32, split_seed=seed)
    with scoped(derive(seed, "init")):
        net = MLP(data.outputs, data.input_shape, hidden=64)
    module = method(net, optimizer=partial(torch.optim.SGD, lr=0.5), epochs=2)
    privacy = [] if sigma is None else [Privacy(1.0, sigma, DELTA, level="sample")]
    loop = FederatedLoop(ROUNDS, seed=seed, uplink=[*privacy], progress=False)
    found = loop.fit(module, data)
    return found.history[-1]["test/personal/acc"], found.header.get("privacy", "no clip")


def main() -> None:
    """Print the table."""
    print("| method | sigma | epsilon, of each seed | accuracy (%) |")
    print("| --- | --- | --- | --- |")
    for method in (Local, FedAvg, FedPer):
        for sigma in SIGMAS:
            found = [run(method, sigma, seed) for seed in SEEDS]
            spent = [text.partition("epsilon ")[2].partition(" ")[0] for _, text in found]
            words = "no clip" if sigma is None else "none" if not sigma else ", ".join(spent)
            scores = ", ".join(f"{100 * score:.1f}" for score, _ in found)
            told = "-" if sigma is None else f"{sigma:g}"
            print(f"| {method.__name__} | {told} | {words} | {scores} |", flush=True)


if __name__ == "__main__":
    main()
