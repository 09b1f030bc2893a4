"""Ray actors give the sequential engine's bits, whatever becomes of them on the way."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from lightning_modules.base import ClientModule
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.nets import SplitNet
from pfl.__main__ import main
from pfl.cli.runs import RUN_REFUSALS
from pfl.core.failure import JobError
from pfl.core.held_out import HeldOut
from pfl.core.seeds import scoped
from pfl.core.types import Broadcast, Result, Upload
from pfl.engines.actors import Pool, WorkerError, _last_output
from pfl.engines.base import Engine
from pfl.engines.messages import MessageEncoder, decode_job, decode_result, encode_result
from pfl.engines.ray import RayEngine, _answers
from pfl.engines.sequential import SequentialEngine
from pfl.engines.worker import Recipe, Worker
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.engines import agreement
from tests.engines.agreement import numbers, same
from tests.engines.remote.sites import without
from tests.helpers.discovery import build, methods
from tests.helpers.federation import HEAVY, SGD, context, equal, job
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed

ray = pytest.importorskip("ray")

SIZES = (4, 9, 2, 17, 6)
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_op_thread")


@pytest.fixture(scope="class")
def cluster():
    """A cluster that the engines find running."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


def fit(module, engine, rounds=3, data=None, **options):
    return agreement.fit(module, engine, rounds, data or blobs(SIZES), **options)


# What travels, without a cluster.


class OneWorker(Engine):
    """A worker in this process, to which everything travels as it would to another."""

    def setup(self, context):
        recipe = Recipe.of(context, threads=1, gpu=False)
        self.worker = Worker(pickle.loads(ray.cloudpickle.dumps(recipe)))
        return "one worker"

    def train(self, jobs):
        for message in self._run(self.worker.train, jobs):
            yield decode_result(message, CPU)

    def test(self, jobs):
        return self._run(self.worker.test, jobs)

    def _run(self, call, jobs):
        encoder = MessageEncoder(jobs, lambda data: data)
        for item in jobs:
            sent = pickle.loads(pickle.dumps(encoder.encode(item)))
            yield pickle.loads(pickle.dumps(call(*sent)))

    def close(self):
        pass


@pytest.mark.parametrize("method", methods(), ids=lambda m: m.__name__)
def test_every_method_gives_the_sequential_bits_in_a_worker(method):
    alone = fit(build(method, mlp(), optimizer=SGD), SequentialEngine())
    assert same(fit(build(method, mlp(), optimizer=SGD), OneWorker()), alone)


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_batch_norm_clipping_and_kept_momentum_give_the_sequential_bits(precision):
    options = {"optimizer": HEAVY, "persist_optimizer": True, "buffers": "local", "epochs": 2}
    loop = {"precision": precision, "gradient_clip_val": 0.5}
    alone = fit(FedAvg(normed(), **options), SequentialEngine(), **loop)
    assert same(fit(FedAvg(normed(), **options), OneWorker(), **loop), alone)


def test_what_steps_log_comes_back_from_a_worker():
    alone, away = (
        fit(agreement.Logs(mlp(), optimizer=SGD), engine, 1)
        for engine in (SequentialEngine(), OneWorker())
    )
    # Read as text, in which values that are not finite are equal.
    assert "log/mass" in str(away.latest.clients)
    assert str(away.latest.clients) == str(alone.latest.clients)


def test_a_worker_starts_from_the_template_of_a_resumed_run(tmp_path):
    def sgd(seed):
        return FedPer(mlp(seed=seed), optimizer=partial(torch.optim.SGD, lr=0.1))

    whole = fit(sgd(1), SequentialEngine(), sampler=UniformSampler(0.4))
    folder = str(tmp_path)
    broken = fit(
        sgd(1), OneWorker(), 1, sampler=UniformSampler(0.4), default_root_dir=folder
    ).folder
    # A network of other initial weights: what counts is the checkpoint's.
    resumed = fit(sgd(2), OneWorker(), sampler=UniformSampler(0.4), ckpt_path=str(broken))
    assert same(resumed, whole)


def test_parameters_that_the_user_froze_stay_frozen():
    net = mlp()
    net.head.bias.requires_grad_(False)
    found = context(FedAvg(net), blobs())
    worker = Worker(Recipe.of(found, threads=1, gpu=False))
    assert worker._context.trainable == found.trainable
    assert "net.head.bias" not in found.trainable


class Actors(RayEngine):
    """The engine with one worker, in this process."""

    def setup(self, context):
        self._absences.clear()
        self._device = CPU
        self._worker = Worker(Recipe.of(context, threads=1, gpu=False))
        self._pool = self
        return "actors"

    def run(self, call, jobs):
        encoder = MessageEncoder(jobs, lambda data: data)
        for item in jobs:
            try:
                yield getattr(self._worker, call)(*encoder.encode(item))
            except JobError as error:
                yield error

    def close(self):
        pass


class Misses(FedPer):
    """Some clients fail in some rounds."""

    def __init__(self, *missing, tests=()):
        super().__init__(mlp(), optimizer=HEAVY, persist_optimizer=True)
        self.missing, self.tests = {*missing}, {*tests}

    def receive(self, broadcast, info):
        if (info.client, info.round) in self.missing:
            raise ArithmeticError("a study is missing")
        super().receive(broadcast, info)

    def personalise(self, broadcast, info):
        if (info.client, info.round) in self.tests:
            raise ArithmeticError("a study is missing")
        super().personalise(broadcast, info)


MISSING = ((1, 2), (3, 2), (0, 3), (1, 4))


def test_a_client_that_fails_is_absent_in_that_round():
    options = {"rounds": 4, "sampler": UniformSampler(1.0)}
    with pytest.warns(UserWarning, match=parts("without client 1: round 2, client 1 ~ a study")):
        away = fit(Misses(*MISSING), Actors(on_error="absent"), **options)
    alone = fit(Misses(), SequentialEngine(), **{**options, "sampler": without({*MISSING})})
    assert away.fingerprint == alone.fingerprint
    assert away.failures == {"discarded": {0: 1, 1: 2, 3: 1}}
    assert "a study is missing" in away.reasons[3]
    scored = [row for row in away.latest.clients if "test/personal/acc" in row]
    assert scored == [row for row in alone.latest.clients if row["client"] != 1]
    with pytest.raises(JobError, match="a study is missing"):
        fit(Misses(*MISSING), Actors(), **options)


def test_a_client_whose_test_fails_has_no_scores():
    options = {"rounds": 2, "sampler": UniformSampler(1.0)}
    with pytest.warns(UserWarning, match=parts("round 2 ~ without client 1: ~ before the test")):
        away = fit(Misses(tests=[(1, 2)]), Actors(on_error="absent"), **options)
    assert away.failures == {"untested": {1: 1}}
    assert away.fingerprint == fit(Misses(), SequentialEngine(), **options).fingerprint


def test_a_newcomer_that_fails_has_no_scores_after_joining():
    data = blobs(SIZES)
    data.held_out = HeldOut((2, 4))
    with pytest.warns(UserWarning, match="without client 4"):
        run = fit(Misses((4, 2)), Actors(on_error="absent"), 2, data, join_rounds=2)
    rows = {row["client"]: row for row in run.latest.clients if "unseen" in row}
    assert ["test/unseen_joined/acc" in rows[client] for client in (2, 4)] == [True, False]
    assert run.failures == {"untested": {4: 1}}


def test_the_common_test_set_is_never_absent(monkeypatch):
    data = blobs(SIZES)
    common = data.pooled_test()
    common.x = common.x[:, :1]
    monkeypatch.setattr(data, "pooled_test", lambda: common)
    with pytest.raises(JobError, match="the common test set"):
        fit(FedAvg(mlp(), optimizer=SGD), Actors(on_error="absent"), 1, data)


def travel(jobs):
    """Return the jobs on arrival, and the numbers of tensors put into the store."""
    stored = []
    encoder = MessageEncoder(jobs, lambda data: stored.append(data) or len(stored) - 1)
    messages = [encoder.encode(item) for item in jobs]
    return [decode_job(message, stored[place], CPU) for message, place in messages], stored


def test_what_jobs_share_travels_once():
    """Three jobs share 4 kB and have 4 kB each of their own: 4 kB stored, not 12."""
    data, common = blobs(), {"w": torch.randn(1000), "b": torch.zeros(0)}
    jobs = [
        job(data, c, Broadcast({"own": torch.randn(1000), **common}, {"w": common["w"]}))
        for c in range(3)
    ]
    arrived, stored = travel(jobs)
    (shared_payload,) = stored
    assert 4000 < len(shared_payload) < 8000
    for before, after in zip(jobs, arrived, strict=True):
        assert list(after.broadcast.shared) == list(before.broadcast.shared)
        assert equal(after.broadcast.shared, before.broadcast.shared)
        assert equal(after.broadcast.extra, before.broadcast.extra)


def test_a_part_of_a_large_tensor_travels_alone():
    stacked = torch.randn(3, 1000)
    jobs = [job(blobs(), c, Broadcast({"w": stacked[c]}), kept={"k": stacked[c]}) for c in range(3)]
    encoder = MessageEncoder(jobs, len)
    messages = [encoder.encode(item)[0] for item in jobs]
    assert all(8000 < len(message.states) < 11000 for message in messages)


def test_types_strides_and_absence_survive():
    kept = {
        "strided": torch.randn(3, 4).t(),
        "half": torch.randn(2).bfloat16(),
        "count": torch.tensor(3),
        "empty": torch.zeros(0, 2),
    }
    (arrived,), _ = travel([job(blobs(), kept=kept)])
    assert arrived.broadcast is None
    assert equal(arrived.kept, kept)
    for name, value in kept.items():
        assert arrived.kept[name].stride() == value.stride()
        assert arrived.kept[name].dtype == value.dtype
    result = Result(0, None, kept, {"local/ce": 1.0}, 2, 3, finite=False)
    assert replace(decode_result(encode_result(result), CPU), kept={}) == replace(result, kept={})
    full = replace(result, upload=Upload(0, 3, {"a": kept["strided"]}, {"b": kept["half"]}))
    upload = decode_result(encode_result(full), CPU).upload
    assert equal(upload.shared, full.upload.shared)
    assert equal(upload.extra, full.upload.extra)
    assert upload.samples == 3


# Actors.


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


def with_dropout():
    with scoped(1):
        body = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout())
        net = SplitNet(body, nn.Linear(6, 3))
    return FedPer(net, optimizer=HEAVY)


class Dies(FedAvg):
    """Client 1 kills its process: the first time, or each time."""

    def __init__(self, mark=None):
        super().__init__(mlp(), optimizer=HEAVY)
        self.mark = mark

    def receive(self, broadcast, info):
        super().receive(broadcast, info)
        if info.client == 1 and (self.mark is None or not self.mark.exists()):
            if self.mark is not None:
                self.mark.touch()
            print("out of luck", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


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


class Fails(ClientModule):
    def receive(self, broadcast, info):
        if info.client in (1, 2):
            raise ArithmeticError(f"no luck for {info.client}")


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

    def test_a_job_that_kills_every_worker_leaves_the_round_to_the_others(self):
        options = {"rounds": 2, "sampler": UniformSampler(1.0)}
        with pytest.warns(UserWarning, match=parts("without client 1: ~ 3 times ~ out of luck")):
            away = fit(Dies(), RayEngine(workers=2, on_error="absent"), **options)
        left = without({(1, 1), (1, 2)})
        alone = fit(FedAvg(mlp(), optimizer=HEAVY), SequentialEngine(), 2, sampler=left)
        assert away.fingerprint == alone.fingerprint
        assert away.failures == {"discarded": {1: 2}}

    def test_an_error_in_a_job_names_the_client_and_leaves_the_workers_alive(self):
        data = blobs()
        engine = RayEngine(workers=2)
        engine.setup(context(Fails(mlp()), data))
        bad = [job(data, client, Broadcast({})) for client in (1, 2)]
        with pytest.raises(
            JobError, match=r"round 1, client [12] \(.*, line \d+\): ArithmeticError: no luck for"
        ):
            list(engine.train(bad))
        (result,) = engine.train([job(data, 0, Broadcast({}))])
        assert result.client == 0
        engine.close()

    @pytest.mark.parametrize("workers", [1, 3])
    def test_the_number_of_actors_does_not_matter(self, workers):
        options = {"rounds": 2, "evaluate_at": ["post_local", "post_broadcast"]}
        alone = fit(with_dropout(), SequentialEngine(), **options)
        assert same(fit(with_dropout(), RayEngine(workers=workers), **options), alone)

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
    with pytest.raises(ValueError, match=r"workers.* 1.* 0"):
        RayEngine(workers=0)
    with pytest.raises(ValueError, match=r"cpus_per_worker.* 1.* 0"):
        RayEngine(cpus_per_worker=0)
    with pytest.raises(ValueError, match=r"gpus_per_worker.*negative.* -1"):
        RayEngine(gpus_per_worker=-1)


def test_failures_of_the_cluster_are_told_in_a_sentence():
    assert issubclass(WorkerError, RUN_REFUSALS)


def test_a_cluster_that_does_not_start_is_told_in_a_sentence(monkeypatch):
    ray = MagicMock()
    ray.is_initialized.return_value = False
    ray.init.side_effect = Exception("The current node timed out during startup.")
    monkeypatch.setattr("pfl.engines.ray.import_ray", lambda: ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(WorkerError, match=parts("Ray ~ start: The current node timed out")):
        RayEngine()._connect()


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "another server"])
def test_an_address_where_no_ray_answers_is_told_at_once(listens, capsys):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if listens:
            server.listen()
            threading.Thread(target=refuse, args=[server], daemon=True).start()
        started = time.monotonic()
        words = ["--loop.engine=RayEngine", f"--loop.engine.address={address}"]
        words += ["--loop.default_root_dir=null", "--loop.progress=false"]
        assert main(["fit", "--config", "configs/quickstart.yaml", *words]) == 2
    assert time.monotonic() - started < 30
    error = capsys.readouterr().err
    assert f"no Ray cluster answers at {address}" in error
    assert error.count("\n") == 1


def refuse(server):
    """Answer one connection as a server of web pages does."""
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("address", ["", "auto", "local", "no-port", "ray://[::1"])
def test_words_are_left_to_ray(address):
    assert _answers(address)


def test_the_end_of_a_worker_on_another_machine_is_told_as_ray_tells_it():
    error = RuntimeError(
        "The actor died.\n\tpid: 7\nWorker exit detail: End of file. "
        "Some common causes include: (1) the process was killed"
    )
    assert _last_output(Path("/nowhere/worker.err"), error) == "End of file."


class DeadCluster:
    """A Ray whose only node has died: it waits for workers without end."""

    def put(self, value):
        return value

    def remote(self, kind):
        return MagicMock()

    def wait(self, refs, timeout):
        return [], refs

    def nodes(self):
        return [{"Alive": False}]


def test_a_cluster_without_nodes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("pfl.engines.actors.import_ray", DeadCluster)
    with pytest.raises(WorkerError, match=parts("Ray ~ died")):
        Pool(None, 1)


def test_a_missing_ray_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=parts("Ray: pip install 'pfl-lightning[ray]'")):
        RayEngine()
