"""The vectorised engine takes as many clients as fit in half of the memory that is free."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch.profiler import ProfilerActivity, profile

from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import MLP, LeNet5
from lightning_modules.pfedbayes import PFedBayes
from pfl.core import devices
from pfl.core.data import info_of
from pfl.core.types import Job
from pfl.engines import memory
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack import capacity
from pfl.engines.stack import round as stack_round
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.sampling import UniformSampler
from pfl.training.context import Context
from tests.engines.agreement import fit, module_of
from tests.helpers import toy
from tests.helpers.federation import HEAVY, context
from tests.helpers.toy import blobs

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def images(clients, samples, size=32):
    """Return a federation of random images, as many samples for each client."""
    shape = (samples, 3, size, size)
    inputs = [torch.rand(shape, generator=torch.Generator().manual_seed(c)) for c in range(clients)]
    labels = [torch.arange(samples) % 10 for _ in range(clients)]
    data = toy.ToyData(list(zip(inputs, labels, strict=True)), outputs=10, batch_size=16)
    data.eval_batch_size = 40
    return data


@pytest.mark.parametrize(("room", "size"), [(6.9, 3), (0.1, 1)])
def test_it_takes_what_fits_in_half_of_the_free_memory(room, size, monkeypatch):
    monkeypatch.setattr(capacity, "of_client", lambda context: 1000)
    monkeypatch.setattr(capacity, "free", lambda device: int(room * 1000))
    chunks = []
    train = stack_round.train
    monkeypatch.setattr(
        stack_round, "train", lambda context, jobs: chunks.append(len(jobs)) or train(context, jobs)
    )
    build = partial(module_of, FedAvg, toy.mlp)
    loop = {"data": blobs((4, 9, 2, 17, 6)), "precision": "64-true", "rounds": 1}
    loop["sampler"] = UniformSampler(1.0)
    beside = fit(
        build(),
        VectorisedEngine(),
        **loop,
    )
    whole, rest = divmod(5, size)
    assert chunks[2:] == [size] * whole + [rest] * bool(rest), "after the guard's two"
    assert beside.header["engine"] == (
        f"vectorised: up to {size} clients in one stack, which fill half of the free memory"
    )
    alone = fit(
        build(),
        SequentialEngine(),
        **loop,
    )
    torch.testing.assert_close(beside.server.shared, alone.server.shared, **CLOSE)


def peak(context, clients):
    """Return the bytes that a round of some clients holds at most, beyond what was there."""
    jobs = [
        Job(info_of(context.data, client), {}, None, client, splits=("train",))
        for client in range(clients)
    ]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watch:
        stack_round.train(context, jobs)
    held = most = 0
    found = watch.profiler.kineto_results.events()
    for event in sorted((e for e in found if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize(
    "build",
    [lambda: LeNet5(10), lambda: MLP(10, (3, 32, 32), hidden=200)],
    ids=["LeNet5", "MLP"],
)
def test_what_a_client_is_said_to_need_is_what_it_takes(build):
    """Within a factor of two and a half, and never too little by more than a tenth."""
    data = images(4, 40)
    context = Context(FedAvg(build(), optimizer=HEAVY), data, Fabric(accelerator="cpu"))
    taken = (peak(context, 4) - peak(context, 2)) / 2
    assert taken / 1.1 < capacity.of_client(context) < 2.5 * taken


def test_free_memory_keeps_within_a_container(tmp_path, monkeypatch):
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("5000\n")
    used.write_text("2000\n")
    monkeypatch.setattr(memory, "_GROUPS", [(limit, used)])
    monkeypatch.setattr(memory, "_machine", lambda: 9000)
    assert memory.free(torch.device("cpu")) == 3000
    limit.write_text("max\n")
    assert memory.free(torch.device("cpu")) == 9000


def test_fixed_steps_hold_their_draws_once_more(monkeypatch):
    """Five draws of all 57 weights of an MLP with 5 inputs, 6 units and 3 outputs."""
    ctx = context(PFedBayes(toy.mlp(), inner_steps=5), blobs())
    before = capacity.of_client(ctx)
    monkeypatch.setattr(devices, "repeats", lambda device: True)
    weights = 5 * 6 + 6 + 6 * 3 + 3
    assert capacity.of_client(ctx) - before == 5 * weights * 4
