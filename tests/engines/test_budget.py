"""What the host reads from a device and copies to it: never in a step of a stack, seldom beside."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from datamodules import IID, Synthetic
from lightning_modules.fedavg import FedAvg
from pfl.core import devices
from pfl.engines.stack import round as stack_round
from pfl.training import client_round
from pfl.training.context import Context
from tests.engines.stack.test_fixed import flat
from tests.helpers.device import NAME, simulated
from tests.helpers.federation import HEAVY, job


def train_alone(context, jobs):
    return [client_round.train(context, one) for one in jobs]


def test_alone(context, jobs):
    return list(
        client_round.scored(context.scorer, client_round.all_answers(lambda client: context, jobs))
    )


test_alone.__test__ = False
CALLS = {
    "sequential": (train_alone, test_alone),
    "vectorised": (stack_round.train, stack_round.test),
}


class Phases(FedAvg):
    """FedAvg in ``phases`` phases, all alike."""

    phases = 1

    def plan(self):
        (phase,) = super().plan()
        return [replace(phase, name=f"phase{n}") for n in range(self.phases)]


def spent(device, call, splits=(), clients=3, phases=1, **options):
    """Return the (2,) numbers of reads and copies of clients with three steps an epoch."""
    data = Synthetic(
        samples=48, classes=4, num_clients=3, partition=IID(), batch_size=4, test_fraction=0.25
    )
    data.setup()
    module, fabric = Phases(flat(), optimizer=HEAVY, **options), devices.fabric(NAME, 1, "32-true")
    module.phases = phases
    data.to(fabric.device)
    context = Context(module, data, fabric)
    jobs = [job(data, client, splits=splits) for client in range(clients)]
    call(context, jobs)  # Samples and constants are moved to the device once.
    device.reset()
    call(context, jobs)
    return torch.tensor([device.reads.total(), device.copies.total()])


# Reads and copies.
BUDGET = {
    ("sequential", "a step"): [0, 1],
    ("sequential", "a phase beside its steps"): [0, 3],
    ("sequential", "a client beside its phases"): [2, 0],
    ("sequential", "a round beside its steps"): [6, 9],
    ("sequential", "a test"): [1, 4],
    ("vectorised", "a step"): [0, 0],
    ("vectorised", "a phase beside its steps"): [0, 4],
    ("vectorised", "a client beside its phases"): [0, 0],
    ("vectorised", "a round beside its steps"): [2, 4],
    ("vectorised", "a test"): [1, 3],
}


@pytest.mark.long
def test_reads_and_copies_are_those_of_the_budget():
    measured = {}
    with simulated() as device:
        for engine, (train, test) in CALLS.items():
            one = spent(device, train)
            # Each client has steps and phases of its own, or all of a stack share them.
            turns = 3 if engine == "sequential" else 1
            step = (spent(device, train, epochs=3) - one) / (6 * turns)
            phase = (spent(device, train, phases=2) - one) / turns - 3 * step
            client = one - spent(device, train, clients=2)
            if engine == "sequential":
                client = client - phase - 3 * step
            measured[engine, "a step"] = step.tolist()
            measured[engine, "a phase beside its steps"] = phase.tolist()
            measured[engine, "a client beside its phases"] = client.tolist()
            measured[engine, "a round beside its steps"] = (one - 3 * turns * step).tolist()
            measured[engine, "a test"] = spent(device, test, ("test",)).tolist()
    assert measured == BUDGET
