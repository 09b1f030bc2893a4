"""Accuracy against epsilon, on the digits and on the heart data of four hospitals.

    python -m benchmarks.private_runs
    python -m benchmarks.private_runs --heart data/heart

Each row is a strength of noise and each column a method, all with one network, two local epochs and
one learning rate; printed is the mean personal accuracy after the last round, over seeds. Nothing
was tuned: a choice by results would have to be accounted for.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from datamodules import Digits, Dirichlet, HeartDisease
from datamodules.base import FederatedDataModule
from lightning_modules.ditto import Ditto
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.nets import MLP
from lightning_modules.pfedvem import PFedVEM
from pfl.core.seeds import derive, scoped
from pfl.extras.privacy.accountant import epsilon
from pfl.extras.privacy.privacy import Privacy
from pfl.federation.sampling import BernoulliSampler
from pfl.loop import FederatedLoop

METHODS: Sequence[Any] = (FedAvg, FedPer, Ditto, PFedVEM)
CLIP = 1.0


class Setting(NamedTuple):
    """A federation: its data, rate q, rounds, learning rate, delta and strengths of noise."""

    data: FederatedDataModule
    rate: float
    rounds: int
    lr: float
    delta: float
    sigmas: Sequence[float]


def digits() -> Setting:
    """Return the digits on a hundred clients."""
    data = Digits(num_clients=100, partition=Dirichlet(0.3, min_samples=5), batch_size=16)
    return Setting(data, 0.2, 50, 0.1, 1e-3, (0.7, 1.0, 2.0, 4.0))


def heart(root: str) -> Setting:
    """Return the four hospitals, all of which take part in each round."""
    data = HeartDisease(root, test_protocol="matched", batch_size=16)
    return Setting(data, 1.0, 20, 0.05, 1e-2, (1.0, 4.0, 16.0))


def accuracy(method: Any, setting: Setting, privacy: Privacy | None, seed: int) -> float:  # noqa: ANN401
    """Return the mean accuracy of personal models after the last round."""
    with scoped(derive(seed, "init")):
        net = MLP(setting.data.outputs, setting.data.input_shape, hidden=64)
    rates = {"lr_head": setting.lr / 100, "lr_base": setting.lr} if method is PFedVEM else {}
    module = method(
        net,
        optimizer=partial(torch.optim.SGD, lr=setting.lr),
        epochs=2,
        weighting="uniform",
        task=setting.data.task,
        **rates,
    )
    loop = FederatedLoop(
        setting.rounds,
        BernoulliSampler(setting.rate, minimum=0, train_all=False),
        evaluate_every=setting.rounds,
        uplink=None if privacy is None else [privacy],
        progress=False,
        accelerator="cpu",
        seed=seed,
    )
    return loop.fit(module, setting.data).summary["test/personal/acc/last"]


def table(setting: Setting, seeds: Sequence[int]) -> None:
    """Print the rows of a federation."""
    print("| epsilon | sigma | " + " | ".join(kind.__name__ for kind in METHODS) + " |")
    print("| --- " * (2 + len(METHODS)) + "|")
    for sigma in (None, 0.0, *setting.sigmas):
        privacy = None if sigma is None else Privacy(CLIP, sigma, setting.delta)
        spent = epsilon(setting.rate, sigma or 0.0, setting.rounds, setting.delta)
        cells = [
            sum(accuracy(method, setting, privacy, seed) for seed in seeds) / len(seeds)
            for method in METHODS
        ]
        told = "no bound" if math.isinf(spent) else f"{spent:.2f}"
        noise = "not private" if sigma is None else f"{sigma:g}"
        shown = " | ".join(f"{100 * cell:.1f}" for cell in cells)
        print(f"| {told} | {noise} | {shown} |", flush=True)


def main() -> None:
    """Print the table of the digits, or that of the hospitals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heart", help="folder of the four hospitals' files")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table(digits() if given.heart is None else heart(given.heart), range(1, given.seeds + 1))


if __name__ == "__main__":
    main()
