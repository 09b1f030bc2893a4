"""The choice of an engine goes by device, method, network and sizes, and changes no number."""

from __future__ import annotations

import json
import tempfile
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric import Fabric

from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import MLP
from pfl.core.seeds import scoped
from pfl.engines import auto, op_threads
from pfl.engines import cores as machine
from pfl.engines.auto import AutoEngine, parallelism
from pfl.engines.sequential import SequentialEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.loop import FederatedLoop
from pfl.training.contexts import Contexts
from tests.engines.agreement import fit
from tests.helpers.federation import SGD, job
from tests.helpers.toy import blobs, mlp


@pytest.fixture
def cores(monkeypatch, tmp_path):
    """Sets the number of cores, for a test; the network is not too small for threads."""
    monkeypatch.setattr(auto, "TINY_STEP", 0)
    # Other tests are runs that share the cores.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda count: monkeypatch.setattr(machine, "usable", lambda: count)


def test_busy_workers_by_hand():
    """Two workers: 10 and 10 beside 10 take 20 units for 30; 90 beside 5 + 5 take 90 for 100."""
    assert parallelism([10, 10, 10], 2) == 30 / 20
    assert parallelism([90, 5, 5], 2) == pytest.approx(100 / 90)
    assert parallelism([7], 4) == 1


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 8))
def test_no_more_are_busy_than_there_are(samples, workers):
    busy = parallelism(samples, workers)
    assert 1 <= busy <= min(workers, len(samples)) + 1e-12


def header(data=None, module=None, **loop):
    module = module or FedAvg(mlp(), optimizer=SGD)
    return fit(module, "auto", rounds=1, data=data or blobs((6, 6, 6)), **loop).header["engine"]


def dropping():
    with scoped(1):
        net = mlp()
        net.backbone.append(torch.nn.Dropout(0.5))
    return FedAvg(net, optimizer=SGD)


@pytest.mark.parametrize(
    ("count", "options", "line"),
    [
        (2, {}, "threads: 2 clients side by side, one op thread each"),
        (1, {}, "sequential: one client after another; there is only one core or one client"),
        (2, {"module": dropping}, "threads: 2 clients side by side, one op thread each"),
        # A number of workers is taken at its word, on fewer cores and with fewer clients.
        (1, {"workers": 2}, "threads: 2 clients side by side"),
        (1, {"workers": 5}, "threads: 3 clients side by side"),
        (4, {"workers": 1}, "there is only one core or one client"),
    ],
)
def test_the_choice_goes_by_cores_clients_and_network(cores, count, options, line):
    cores(count)
    module = options.pop("module", lambda: None)()
    assert line in header(module=module, **options)


def test_many_small_clients_are_stacked_however_many_cores_there_are(cores):
    """Five of equal size are five at work; with one of ten times the size they are 1.4."""
    for count in (1, 4):
        cores(count)
        line = header(blobs((6,) * 5))
        assert line == "auto: vectorised: all clients in one stack"
        assert "vectorised" not in header(blobs((60, 6, 6, 6, 6)))


@pytest.mark.parametrize("limit", ["SHORT_STEP", "CACHED"])
def test_larger_networks_are_not_stacked(cores, monkeypatch, limit):
    cores(1)
    monkeypatch.setattr(auto, limit, 20)
    assert "the network is too large for a stack" not in header()
    assert "vectorised" not in header(blobs((6,) * 5))


@pytest.mark.parametrize(
    ("tiny", "long", "engine"),
    [(0, 3, "2 clients side by side"), (0, 4, "vectorised"), (48, 3, "vectorised")],
)
def test_larger_batches_of_larger_networks_are_not_stacked(cores, monkeypatch, tiny, long, engine):
    """Batches of four, and 48 multiplications a sample."""
    cores(2)
    monkeypatch.setattr(auto, "TINY_STEP", tiny)
    monkeypatch.setattr(auto, "LONG_BATCH", long)
    assert engine in header(blobs((6,) * 5))


def test_tiny_networks_that_are_not_stacked_run_one_after_another(cores, monkeypatch):
    cores(4)
    monkeypatch.setattr(auto, "TINY_STEP", 48)
    assert header().endswith("; steps are too short for threads")


@pytest.mark.parametrize(("limit", "seen"), [(47, {"train"}), (48, {"train", "test"})])
def test_tests_of_the_tiniest_networks_are_stacked(cores, monkeypatch, limit, seen):
    cores(1)
    monkeypatch.setattr(auto, "TINY_TEST", limit)
    found = set()
    for verb in ("train", "test"):
        run = getattr(VectorisedEngine, verb)

        def noted(self, jobs, verb=verb, run=run):
            found.add(verb)
            return run(self, jobs)

        monkeypatch.setattr(VectorisedEngine, verb, noted)
    header(blobs((6,) * 5))
    assert found == seen


def test_other_runs_take_cores_but_change_no_number(cores, monkeypatch):
    """Beside another run one client runs at a time, still with one op thread."""
    cores(2)
    monkeypatch.setattr(op_threads, "SHORT_OPERATION", 0)
    run = partial(fit, engine="auto", rounds=2, data=blobs((6, 6, 6)))
    alone = run(FedAvg(mlp(), optimizer=SGD))
    with machine.Share():
        beside = run(FedAvg(mlp(), optimizer=SGD))
        assert "2 clients side by side" in alone.header["engine"]
        assert "one client at a time, as other runs take the cores" in beside.header["engine"]
        assert alone.fingerprint == beside.fingerprint
        assert "2 clients side by side" in header(workers=2)


@pytest.mark.parametrize("limit", ["TINY_STEP", "SHORT_STEP"])
def test_a_run_has_its_share_of_the_cores_until_it_ends(cores, monkeypatch, limit):
    """One after another as well as side by side."""
    cores(4)
    monkeypatch.setattr(auto, limit, 48)
    engine = AutoEngine()
    engine.setup(Contexts(FedAvg(mlp()), blobs((6, 6, 6)), Fabric(accelerator="cpu", devices=1)))
    with machine.Share() as beside:
        assert beside == 2
    engine.close()
    with machine.Share() as alone:
        assert alone == 4


def test_a_resumed_run_keeps_what_was_chosen(cores, monkeypatch, tmp_path):
    """A stacked run under rules that would not stack it, and the reverse."""
    cores(1)

    def run(rounds, ckpt_path=None):
        loop = FederatedLoop(rounds, default_root_dir=str(tmp_path), progress=False)
        return loop.fit(FedAvg(mlp(), optimizer=SGD), blobs((6,) * 5), ckpt_path)

    stacked, whole = run(2), run(4)
    assert json.loads((stacked.folder / "environment.json").read_text())["decided"] == "vectorised"
    with monkeypatch.context() as otherwise:
        otherwise.setattr(
            auto, "_unsuitable_reason", lambda context, size: "the rule is another one"
        )
        alone, resumed = run(2), run(4, str(stacked.folder))
    assert resumed.header["engine"].startswith("auto: vectorised")
    assert resumed.fingerprint == whole.fingerprint
    longer = run(3, str(alone.folder))
    assert longer.header["engine"].startswith("auto: sequential")
    assert longer.decided == "sequential"


def test_one_large_client_has_all_cores(cores, monkeypatch):
    """100 of 102 samples are one client's: two workers would be busy 1.02 at a time."""
    cores(2)
    engine, seen = AutoEngine(), []
    monkeypatch.setattr(
        SequentialEngine,
        "train",
        lambda self, jobs: seen.append(len(jobs)) or iter(()),
    )
    data = blobs((100, 1, 1))
    engine.setup(Contexts(FedAvg(mlp()), data, Fabric(accelerator="cpu", devices=1)))
    jobs = [job(data, client, None) for client in range(3)]
    list(engine.train(jobs))
    engine.close()
    assert seen == [3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_stacked_model_on_a_gpu_unless_it_is_large():
    small, large = (FedAvg(MLP(3, (1, 1, 5), width), optimizer=SGD) for width in (4, 10**6))
    assert header(module=small, accelerator="cuda").startswith("auto: vectorised")
    assert "fills the device" in header(module=large, accelerator="cuda")
