"""Ray actors give the sequential engine's bits, whatever becomes of them on the way."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from lightning_modules.ditto import Ditto
from lightning_modules.fedavg import FedAvg
from pfl.core.seeds import scoped
from pfl.engines.ray import Actor, RayEngine, _last_output
from pfl.engines.sequential import SequentialEngine
from pfl.engines.transport.pool import WorkerError
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.any_module.data import data
from tests.any_module.modules import MATRIX
from tests.engines.agreement import numbers, same
from tests.engines.test_workers import SIZES, Dies, fit, with_dropout
from tests.helpers.messages import parts, refuses
from tests.helpers.toy import blobs, mlp

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.usefixtures("one_op_thread")


@pytest.fixture(scope="class")
def cluster():
    """A cluster that the engines find running."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


# Actors.


@pytest.mark.long
def test_actors_of_a_cluster_of_its_own_give_the_sequential_bits():
    """The engine starts the cluster and stops it, and SIGTERM keeps the meaning it had."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        beside = fit(with_dropout(), RayEngine(workers=2))
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert beside.header["engine"] == "ray: 2 workers of 1 CPU, on 1 node"
    assert not ray.is_initialized()
    assert same(beside, fit(with_dropout(), SequentialEngine()))


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
class TestOwnModules:
    @pytest.mark.parametrize("kind", MATRIX, ids=lambda kind: kind.__name__)
    def test_a_module_with_steps_of_its_own_has_the_sequential_bits(self, kind):
        def run(engine):
            with scoped(0):
                module = Ditto(kind())
            return FederatedLoop(2, progress=False, engine=engine).fit(module, data(kind))

        assert same(run(RayEngine(workers=2)), run(SequentialEngine()))


@pytest.mark.slow
def test_two_nodes_of_a_cluster_that_is_joined_and_the_loss_of_one():
    """A worker on each node; the second node is lost after the first round."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        engine = RayEngine(address=cluster.address)
        loop = FederatedLoop(3, engine=engine, progress=False, sampler=UniformSampler(0.8))
        rounds = loop.rounds_of(with_dropout(), blobs(SIZES))
        history = [next(rounds)[1].metrics]
        assert len(ray.nodes()) == 2
        cluster.remove_node(second, allow_graceful=False)
        history += [result.metrics for _, result in rounds]
        assert not ray.is_initialized()
        alone = fit(with_dropout(), SequentialEngine())
        for row, wanted in zip(history, numbers(alone), strict=True):
            assert {k: v for k, v in row.items() if not k.startswith("time/")} == wanted
        # What was joined goes on without the run.
        ray.init(address=cluster.address, logging_level="error")
        assert ray.cluster_resources()["CPU"] >= 1
    finally:
        ray.shutdown()
        cluster.shutdown()


class Unreadable(type(blobs())):
    """Data that another process cannot read."""

    def __setstate__(self, state):
        self.__dict__ = state
        self.to = self.refuse

    def refuse(self, device):
        raise FileNotFoundError("there is no folder data/")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
class TestOnARunningCluster:
    def test_an_actor_that_dies_is_replaced_and_the_result_is_the_same(self, tmp_path):
        mark = tmp_path / "died"
        beside = fit(Dies(mark), RayEngine(workers=2))
        assert mark.exists()
        assert same(beside, fit(Dies(mark), SequentialEngine()))
        assert ray.is_initialized()

    def test_a_job_that_kills_every_worker_ends_the_run_with_what_the_last_one_said(self):
        told = "client 1 in round 1: its worker died 3 times; last output: out of luck$"
        with pytest.raises(WorkerError, match=told):
            fit(Dies(), RayEngine(workers=1))

    def test_a_worker_that_cannot_start_says_why(self):
        data = blobs()
        data.__class__ = Unreadable
        told = "^a Ray worker could not start: .*there is no folder data/$"
        with pytest.raises(WorkerError, match=told):
            fit(FedAvg(mlp()), RayEngine(workers=1), data=data)
        assert ray.is_initialized()

    def test_no_room(self):
        with pytest.raises(ValueError, match=parts("4 workers ~ 5")):
            fit(FedAvg(mlp()), RayEngine(workers=5))
        with pytest.raises(ValueError, match=parts("0 workers ~ 'GPU': 0.5")):
            fit(FedAvg(mlp()), RayEngine(gpus_per_worker=0.5))

    def test_a_cluster_that_others_use(self, monkeypatch):
        monkeypatch.setattr("pfl.engines.ray.ROOM_SECONDS", 0.5)
        occupied = ray.util.placement_group([{"CPU": 4}])
        assert occupied.wait(30)
        with pytest.raises(WorkerError, match=parts("Ray ~ busy ~ 4 workers")):
            fit(FedAvg(mlp()), RayEngine())
        ray.util.remove_placement_group(occupied)


# What is refused.


def test_bad_numbers():
    refuses(RayEngine, "at least 1", workers=0, cpus_per_worker=0)
    refuses(RayEngine, "negative", gpus_per_worker=-1)


def test_a_cluster_that_does_not_start_is_told_in_a_sentence(monkeypatch):
    ray = MagicMock()
    ray.is_initialized.return_value = False
    ray.init.side_effect = Exception("The current node timed out during startup.")
    monkeypatch.setattr("pfl.engines.ray.import_ray", lambda: ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(WorkerError, match=parts("Ray ~ start: The current node timed out")):
        RayEngine()._connect()


def test_the_end_of_a_worker_on_another_machine_is_told_as_ray_tells_it():
    error = RuntimeError(
        "The actor died.\n\tpid: 7\nWorker exit detail: End of file. "
        "Some common causes include: (1) the process was killed"
    )
    assert _last_output(Path("/nowhere/worker.err"), error) == "End of file."


class DeadCluster:
    """A Ray whose only node has died: it waits for workers without end."""

    exceptions = MagicMock(RayError=ConnectionError)

    def remote(self, kind):
        return MagicMock()

    def wait(self, refs, timeout):
        return [], refs

    def nodes(self):
        return [{"Alive": False}]


def test_a_cluster_without_nodes_is_not_waited_for():
    with pytest.raises(WorkerError, match=parts("Ray ~ died")):
        Actor(DeadCluster(), {}, None, None).ready()


def test_a_missing_ray_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=parts("Ray: pip install 'pfl-lightning[ray]'")):
        RayEngine()
