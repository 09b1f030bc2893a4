"""On a simulated second device: the numbers of the CPU, by every engine."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lightning_modules.fedavg import FedAvg, FedAvgP
from lightning_modules.fedper import FedPer
from pfl.core.state import named
from pfl.core.task import MultiLabel, Regression
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.sampling import UniformSampler
from tests.engines import test_gpu as gpu
from tests.engines.agreement import agree, fit, images
from tests.helpers.device import NAME, MixedDevicesError, simulated
from tests.helpers.discovery import methods
from tests.helpers.federation import HEAVY
from tests.helpers.toy import blobs, mlp, normed
from tests.testing.broken_rounds import ScalesBySamples

# What servers compute on the host: few shares of clients (FedSimSup), and of pairs (FedAMP).
DESCRIBES = {"similarity", "samples", "shares"}


def run(method, engine, accelerator=NAME, **options):
    """Run two rounds of all clients; clipped, as the steps are large."""
    usual = {
        "rounds": 2,
        "precision": "64-true",
        "gradient_clip_val": 0.5,
        "sampler": UniformSampler(1.0),
        "data": images(),
    }
    module = gpu.built(method) if isinstance(method, type) else method
    return fit(module, engine, accelerator=accelerator, **usual | options)


@pytest.mark.long
@pytest.mark.parametrize("method", methods(), ids=lambda m: m.__name__)
def test_a_device_agrees_with_the_cpu(method):
    """One client after another and stacked, as far as a method can be; one of three is absent.

    What a server holds of uploads stays on the device, every operation of which passes through
    Python: half a minute for methods that compute with distributions.
    """
    options = {"sampler": UniformSampler(0.7)}
    expected = run(method, "sequential", "cpu", **options)
    with simulated():
        alone, stacked = (run(method, engine, **options) for engine in ("sequential", "vectorised"))
        of_stack = stacked.header["engine"].startswith("vectorised")
        assert of_stack == gpu.built(method).vectorizable
        for found in (alone, stacked):
            held = named(found.server)
            arrays = {name for name, value in held.items() if value.dim()} - DESCRIBES
            assert {held[name].device.type for name in arrays} <= {NAME}
            agree(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("persist", [False, True])
def test_adam_counts_where_its_engine_wants_it(persist):
    """In a stack on the device; otherwise on the host, also where the state is kept."""

    def adam(*options):
        module = FedAvg(
            gpu.net(), optimizer=partial(torch.optim.Adam, lr=0.01), persist_optimizer=persist
        )
        return run(module, *options)

    expected = adam("sequential", "cpu")
    with simulated():
        stacked = adam("vectorised")
        assert stacked.header["engine"].startswith("vectorised") != persist
        for found in (adam("sequential"), stacked):
            agree(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["sequential", "vectorised", "auto"])
@pytest.mark.parametrize("task", [None, MultiLabel(), Regression()], ids=lambda t: type(t).__name__)
def test_other_tasks_batch_norm_and_pooled_tests(engine, task):
    """Both points of testing, too; float64, of clients of which auto stacks all."""
    sizes, told = (6, 5, 6, 4, 6), {} if task is None else {"task": task}

    def go(accelerator):
        module = FedAvgP(normed(), optimizer=HEAVY, **told)
        points = ["post_broadcast", "post_local"]
        return run(module, engine, accelerator, data=blobs(sizes, task=task), evaluate_at=points)

    expected = go("cpu")
    with simulated():
        found = go(NAME)
        assert ("vectorised" in found.header["engine"]) == (engine != "sequential")
        agree(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_trains_float32_weights(precision):
    """Scaled losses are not stacked."""
    with simulated():
        found = run(FedAvg, "auto", precision=precision)
        assert ("vectorised" in found.header["engine"]) == (precision == "bf16-mixed")
        weights = found.server.shared.values()
        assert {value.dtype for value in weights} == {torch.float32}
        assert all(value.isfinite().all() for value in weights)


@pytest.mark.parametrize("starts", [NAME, "cpu"])
def test_a_run_goes_on_where_it_did_not_begin(starts, tmp_path):
    """From a checkpoint of the other device, with kept states in files."""
    ends = "cpu" if starts == NAME else NAME

    def go(accelerator, rounds, **options):
        module = FedPer(mlp(), optimizer=HEAVY, persist_optimizer=True)
        return run(module, "sequential", accelerator, data=blobs(), rounds=rounds, **options)

    folder = {"default_root_dir": str(tmp_path), "kept_memory": 0.0}
    expected = go("cpu", 3)
    with simulated():
        go(starts, 2, **folder)
        found = go(ends, 3, ckpt_path=next(tmp_path.rglob("*.ckpt")), **folder)
        agree(found, expected)


@pytest.mark.long
@pytest.mark.parametrize(("crops", "memory"), [(False, 2**10), (True, 2**10), (True, 2**33)])
def test_data_that_stay_with_the_host_and_random_transforms(crops, memory):
    """What does not fit is copied batch by batch; crops are drawn for each client."""
    data = images(crops=crops)
    expected = run(FedAvg, "sequential", "cpu", data=data)
    for engine in ("sequential", VectorisedEngine(clients=3)):
        with simulated() as device:
            device.memory = memory
            data = images(crops=crops)
            found = run(FedAvg, engine, data=data)
            assert ("vectorised" in found.header["engine"]) == (engine != "sequential")
            agree(found, expected)


def test_a_stack_that_gives_other_numbers_is_refused_on_the_device_too():
    with simulated():
        header = run(ScalesBySamples(mlp(), optimizer=HEAVY), "auto", data=blobs()).header["engine"]
    assert header.startswith("auto: sequential")
    assert "ScalesBySamples gives different numbers when stacked" in header


def test_the_device_refuses_what_a_gpu_refuses():
    """Tensors of the CPU beside its own, except single numbers that are only read."""
    host, number = torch.ones(2), torch.tensor(3.0)
    with simulated():
        own = torch.ones(2, device=NAME)
        assert (own * number).tolist() == [3, 3]
        assert own[torch.tensor([1])].tolist() == [1]
        for call in (
            lambda: own + host,
            lambda: host[own.long()],
            lambda: number.add_(own[0]),
            lambda: torch.stack([own[0], number]),
            lambda: own.index_select(0, torch.tensor([1])),
            lambda: torch.nn.Linear(2, 1)(own),
        ):
            with pytest.raises(MixedDevicesError):
                call()


def test_nothing_of_the_device_stays():
    with simulated():
        assert torch.zeros(1, device=NAME).device.type == NAME
    assert not hasattr(torch, NAME)
    with torch.inference_mode():
        assert torch.zeros(1).is_inference()
    with pytest.raises(ValueError, match="invalid accelerator name"):
        fit(gpu.built(FedAvg), "sequential", accelerator=NAME)
