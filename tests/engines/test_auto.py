"""The choice of an engine goes by device, method, network and sizes, and changes no number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric import Fabric

from lightning_modules.fedavg import FedAvg
from lightning_modules.nets import MLP
from pfl.core.seeds import scoped
from pfl.engines.auto import AutoEngine, parallelism
from pfl.engines.named import ENGINES, make_engine
from pfl.engines.sequential import SequentialEngine
from pfl.loop import FederatedLoop
from pfl.training.context import Context
from tests.engines.agreement import fit, numbers
from tests.helpers.federation import SGD, job
from tests.helpers.toy import blobs, mlp


@pytest.fixture
def op_threads():
    """Sets the number of op threads, for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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


def test_threads_where_there_are_cores(op_threads):
    op_threads(2)
    assert header() == "auto: threads: 2 clients side by side, one op thread each"


def test_one_after_another_on_one_core(op_threads):
    op_threads(1)
    expected = "auto: sequential: one client after another; there is one core or one client"
    assert header() == expected


def test_dropout_is_not_shared_among_threads(op_threads):
    op_threads(2)
    with scoped(1):
        net = mlp()
        net.backbone.append(torch.nn.Dropout(0.5))
    assert "dropout draws" in header(module=FedAvg(net, optimizer=SGD))


def test_bits_are_those_of_one_after_another(op_threads):
    op_threads(2)
    beside = fit(FedAvg(mlp(), optimizer=SGD), "auto", data=blobs((6, 5, 6)))
    op_threads(1)
    alone = fit(FedAvg(mlp(), optimizer=SGD), "sequential", data=blobs((6, 5, 6)))
    assert beside.fingerprint == alone.fingerprint
    assert numbers(beside) == numbers(alone)


def test_one_large_client_has_all_op_threads(op_threads, monkeypatch):
    """100 of 102 samples are one client's: two workers would be busy 1.02 at a time."""
    op_threads(2)
    engine, seen = AutoEngine(), []
    monkeypatch.setattr(
        SequentialEngine,
        "train",
        lambda self, jobs: seen.append(len(jobs)) or iter(()),
    )
    data = blobs((100, 1, 1))
    engine.setup(Context(FedAvg(mlp()), data, Fabric(accelerator="cpu", devices=1)))
    jobs = [job(data, client, None) for client in range(3)]
    list(engine.train(jobs))
    engine.close()
    assert seen == [3]


@pytest.mark.parametrize("name", ["auto", "sequential", "threads", "vectorised"])
def test_an_engine_by_its_name(name):
    assert isinstance(make_engine(name), ENGINES[name])


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ValueError, match=r"no engine 'thread'; there are auto, sequential, threads"
    ):
        FederatedLoop(engine="thread")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_stacked_model_on_a_gpu_unless_it_is_large():
    small, large = (FedAvg(MLP(3, (1, 1, 5), width), optimizer=SGD) for width in (4, 10**6))
    assert header(module=small, accelerator="cuda").startswith("auto: vectorised")
    assert "fills the device" in header(module=large, accelerator="cuda")
