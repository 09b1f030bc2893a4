"""Private steps by Opacus, on our batches and with our noise; ``opacus.json`` holds the weights.

In an environment with Opacus (recorded with 1.6.0), write it anew with
``python -m tests.extras.privacy.opacus_numbers``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from lightning_modules import FedAvg
from pfl.core.noise import Noise
from pfl.core.seeds import derive, scoped
from pfl.extras.privacy.sample_level import PrivateSamples
from pfl.testing.federation import ToyFederation
from pfl.testing.toy import ToyData, ToyNet, mlp
from pfl.training.batching import Length
from tests.helpers.federation import steps as steps_of_phase

FILE = Path(__file__).with_name("opacus.json")
CASES = {
    "dense": (PrivateSamples(0.5, 0.0), False),
    "dense with noise": (PrivateSamples(0.5, 1.1), False),
    "convolutions with noise": (PrivateSamples(0.3, 0.7), True),
}


def example(convolutions):
    """A federation of one client with 11 samples, in float64; 4 steps of an epoch, 3 epochs."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(11, *((1, 6, 6) if convolutions else (5,)), generator=rng, dtype=torch.float64)
    y = torch.randint(3, (11,), generator=rng)
    net = mlp()
    if convolutions:
        with scoped(1):
            layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3)
            net = ToyNet(nn.Sequential(*layers, nn.Flatten()), nn.Linear(8, 3))
    method = FedAvg(net, optimizer=partial(torch.optim.SGD, lr=0.2, momentum=0.9), epochs=3)
    return ToyFederation(method, ToyData([(x, y)], batch_size=3), precision="64-true")


def by_opacus(level, convolutions):
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer, optimizer

    federation = example(convolutions)
    context, job, net = federation.context, federation.job(0), federation.module.net
    private = GradSampleModule(net)
    shapes = {f"net.{name}": tuple(value.shape) for name, value in net.named_parameters()}
    noise = Noise(shapes, [derive(job.seed, "privacy", "local")], 12, torch.device("cpu"))
    split, phase = context.data.split(0, "train"), context.plan[0]
    steps = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=0.2, momentum=0.9),
        noise_multiplier=level.sigma,
        max_grad_norm=level.clip,
        expected_batch_size=11 / 4,
    )
    drawn = replace(job, steps=(level,))
    for number, step in enumerate(steps_of_phase(context, drawn, phase, Length(3), 11)):
        with context.fabric.autocast():
            draws = noise.of_step(number)
        # It asks for one draw after another, in the order of the parameters.
        ready = iter(draws.values())
        optimizer._generate_noise = lambda std, ready=ready, **_: std * next(ready)[0]
        with context.fabric.autocast():
            batch = split.batch(step.positions[: step.samples])
        steps.zero_grad()
        losses = nn.functional.cross_entropy(private(batch.x), batch.y, reduction="none")
        (losses.sum() / max(1, len(losses))).backward()
        steps.step()
    return {name: value.tolist() for name, value in net.state_dict().items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: by_opacus(*case) for name, case in CASES.items()}) + "\n")
