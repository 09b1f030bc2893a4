"""On a GPU: the numbers of the CPU, of one engine by the other, and of the same run again.

Runs where there is one: ``pytest tests/engines/test_gpu.py``.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedsimsup import FedSimSup
from lightning_modules.nets import CNN3
from lightning_modules.pfakd import PFAKD
from lightning_modules.pfedvem import PFedVEM
from lightning_modules.univarfl import UniVarFL
from pfl.core.noise import normals, numbers, streams_of
from pfl.core.seeds import scoped
from pfl.engines.sequential import SequentialEngine
from pfl.engines.vectorised import VectorisedEngine
from tests.engines.agreement import around_steps, fit, images, module_of
from tests.helpers.discovery import methods
from tests.helpers.federation import HEAVY

GPU = "cuda"
CLOSE = {"rtol": 1e-8, "atol": 1e-8}

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def net():
    with scoped(1):
        return CNN3(3, (1, 24, 24))


def built(method):
    """Build the method; with a supervisor that takes images, where there is one."""
    return (
        FedSimSup(net(), net(), optimizer=HEAVY) if method is FedSimSup else module_of(method, net)
    )


def run(method, engine, accelerator=GPU, precision="64-true", crops=True):
    """Run two rounds of a method or a module; clipped, as the steps are large."""
    return fit(
        built(method) if isinstance(method, type) else method,
        engine,
        rounds=2,
        data=images(72, crops),
        accelerator=accelerator,
        precision=precision,
        gradient_clip_val=0.5,
    )


def same(one, other):
    torch.testing.assert_close(cpu(one.server.shared), cpu(other.server.shared), **CLOSE)
    assert one.kept.keys() == other.kept.keys()
    for client, state in one.kept.items():
        torch.testing.assert_close(cpu(state), cpu(other.kept[client]), **CLOSE)


def cpu(state):
    return {name: value.cpu() for name, value in state.items()}


@pytest.mark.parametrize(
    "method", [m for m in methods() if m.vectorizable], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("crops", [True, False], ids=["crops", "whole"])
def test_a_stack_agrees_with_one_after_another(method, crops):
    """Float64, convolutions stacked to grouped ones."""
    beside = run(method, VectorisedEngine(), crops=crops)
    assert beside.header["engine"].startswith("vectorised")
    same(beside, run(method, SequentialEngine(), crops=crops))


@pytest.mark.parametrize("foreach", [None, False])
def test_adam_agrees_where_it_counts_on_the_gpu(foreach):
    adam = partial(torch.optim.Adam, lr=0.01, foreach=foreach)
    beside, alone = (
        run(FedAvg(net(), optimizer=adam, epochs=2), engine, crops=False)
        for engine in (VectorisedEngine(), SequentialEngine())
    )
    assert beside.header["engine"].startswith("vectorised")
    same(beside, alone)


@pytest.mark.parametrize("method", [FedAvg, PFedVEM])
def test_no_step_of_a_stack_waits_for_the_gpu(method, monkeypatch):
    """Torch raises an error where the host would have to wait."""
    mode = torch.cuda.set_sync_debug_mode
    around_steps(monkeypatch, lambda: mode("error"), lambda: mode("default"))
    try:
        header = run(method, VectorisedEngine(), crops=False).header["engine"]
    finally:
        mode("default")
    # A step that waits in the check before the run makes the run sequential.
    assert header.startswith("vectorised")


@pytest.mark.parametrize("method", [FedAvg, FedAS, PFAKD, UniVarFL, PFedVEM, FedSimSup])
def test_a_gpu_agrees_with_a_cpu(method):
    """Orders and crops are drawn on the CPU for both, noise is the same on each; float64."""
    same(*(run(method, SequentialEngine(), accelerator) for accelerator in (GPU, "cpu")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_that_of_a_cpu(dtype):
    """Its bits; the draws that are made of them up to the last places."""
    found, bits = [], []
    for device in map(torch.device, (GPU, "cpu")):
        streams = streams_of([3, 2**62 + 5], device)
        found.append(normals(streams, 7, 2, 100_001, dtype).cpu())
        out = torch.empty(2, 1000, dtype=torch.int64, device=device)
        numbers(*streams, 2**40, out, torch.empty_like(out))
        bits.append(out.cpu())
    assert torch.equal(*bits)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_half_precision_trains_float32_weights_and_repeats(precision):
    """The loss scale of one client does not depend on who trained before."""
    first, again = (run(FedAvg, SequentialEngine(), precision=precision) for _ in range(2))
    assert {value.dtype for value in first.server.shared.values()} == {torch.float32}
    assert all(value.isfinite().all() for value in first.server.shared.values())
    same(first, again)


def test_scaled_losses_are_not_stacked():
    header = run(FedAvg, VectorisedEngine(), precision="16-mixed").header["engine"]
    assert "loss scale" in header
