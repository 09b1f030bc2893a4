"""Workers give the sequential engine's bits, whatever becomes of them on the way."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.nets import SplitNet
from pfl.cli.runs import RUN_REFUSALS
from pfl.core.failure import JobError
from pfl.core.seeds import scoped
from pfl.core.types import Broadcast
from pfl.engines.processes import ProcessesEngine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.transport import wire
from pfl.engines.transport.clients import Clients
from pfl.engines.transport.pool import (
    DeadlyJobError,
    DeathError,
    Helper,
    Pool,
    PooledEngine,
    WorkerError,
)
from pfl.engines.transport.worker import Recipe, Worker
from pfl.federation.sampling import UniformSampler
from tests.engines import agreement
from tests.engines.agreement import same, without
from tests.helpers.discovery import build, methods
from tests.helpers.federation import HEAVY, SGD, contexts, equal, job
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed

SIZES = (4, 9, 2, 17, 6)
pytestmark = pytest.mark.usefixtures("one_op_thread")


def fit(module, engine, rounds=3, data=None, **options):
    return agreement.fit(module, engine, rounds, data or blobs(SIZES), **options)


class Here(Helper):
    """A worker in this process, to which everything travels as it would to another."""

    def __init__(self, recipe):
        cloudpickle = pytest.importorskip("cloudpickle")
        self._worker = Worker(pickle.loads(cloudpickle.dumps(recipe)))

    def ready(self):
        pass

    def answer(self, task, content, common):
        return self._worker.answer(task, content, common)

    def end(self):
        pass


class OneWorker(PooledEngine):
    def setup(self, contexts):
        self.employ(contexts, partial(Here, Recipe.of(contexts)), 1, op_threads=1)
        return "one worker"


@pytest.mark.parametrize("method", methods(), ids=lambda m: m.__name__)
def test_every_method_gives_the_sequential_bits_in_a_worker(method):
    alone = fit(build(method, mlp(), optimizer=SGD), SequentialEngine())
    assert same(fit(build(method, mlp(), optimizer=SGD), OneWorker()), alone)


@pytest.mark.parametrize(
    ("engine", "precision"),
    [
        *((OneWorker, precision) for precision in ("32-true", "64-true", "bf16-mixed")),
        *((partial(ThreadsEngine, 2), precision) for precision in ("32-true", "bf16-mixed")),
    ],
)
def test_batch_norm_clipping_and_kept_momentum_give_the_sequential_bits(engine, precision):
    options = {"optimizer": HEAVY, "persist_optimizer": True, "buffers": "local", "epochs": 2}
    loop = {"precision": precision, "gradient_clip_val": 0.5}
    alone = fit(FedAvg(normed(), **options), SequentialEngine(), **loop)
    assert same(fit(FedAvg(normed(), **options), engine(), **loop), alone)


def test_a_worker_has_the_runs_settings_of_torch():
    recipe = Recipe.of(contexts(FedAvg(mlp(), optimizer=SGD), blobs(SIZES)))
    usual = torch.get_float32_matmul_precision()
    try:
        Worker(replace(recipe, matmul_precision="high", deterministic=True))
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_float32_matmul_precision(usual)
        torch.use_deterministic_algorithms(False)


def test_hooks_of_parameters_act_in_a_worker():
    """Neither torch's copies nor its pickles have them."""

    def negate(parameter):
        parameter.grad.neg_()

    def hooked():
        net = mlp()
        net.head.weight.register_hook(lambda gradient: 0.5 * gradient)
        net.head.bias.register_post_accumulate_grad_hook(negate)
        return FedAvg(net, optimizer=SGD)

    alone = fit(hooked(), SequentialEngine())
    assert same(fit(hooked(), OneWorker()), alone)
    assert not same(fit(FedAvg(mlp(), optimizer=SGD), SequentialEngine()), alone)


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
    found = contexts(FedAvg(net), blobs())
    worker = Worker(Recipe.of(found))
    assert worker._contexts.trainable == found.trainable
    assert "net.head.bias" not in found.trainable[0]


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
        if broadcast is not None:
            # A test receives as well; ``missing`` is about rounds.
            super().receive(broadcast, info)


MISSING = ((1, 2), (3, 2), (0, 3), (1, 4))


def test_a_client_that_fails_is_absent_in_that_round():
    options = {"rounds": 4, "sampler": UniformSampler(1.0)}
    with pytest.warns(UserWarning, match=parts("without client 1: round 2, client 1 ~ a study")):
        away = fit(Misses(*MISSING), OneWorker(on_error="absent"), **options)
    alone = fit(Misses(), SequentialEngine(), **{**options, "sampler": without({*MISSING})})
    assert away.fingerprint == alone.fingerprint
    assert away.failures == {"discarded": {0: 1, 1: 2, 3: 1}}
    assert "a study is missing" in away.reasons[3]
    scored = [row for row in away.latest.clients if "test/personal/acc" in row]
    assert scored == [row for row in alone.latest.clients if row["client"] != 1]
    with pytest.raises(JobError, match="a study is missing"):
        fit(Misses(*MISSING), OneWorker(), **options)


def test_a_client_whose_test_fails_has_no_scores():
    options = {"rounds": 2, "sampler": UniformSampler(1.0)}
    with pytest.warns(UserWarning, match=parts("round 2 ~ without client 1: ~ before the test")):
        away = fit(Misses(tests=[(1, 2)]), OneWorker(on_error="absent"), **options)
    assert away.failures == {"untested": {1: 1}}
    assert away.fingerprint == fit(Misses(), SequentialEngine(), **options).fingerprint


def test_a_newcomer_that_fails_has_no_scores_after_joining():
    from pfl.extras.newcomers.newcomers import Newcomers

    data = blobs(SIZES)
    data.apart = {"unseen": (2, 4)}
    joining, engine = [Newcomers(join_rounds=2)], OneWorker(on_error="absent")
    with pytest.warns(UserWarning, match="without client 4"):
        run = fit(Misses((4, 2)), engine, 2, data, evaluations=joining)
    rows = {row["client"]: row for row in run.latest.clients if "unseen" in row}
    assert ["test/unseen_joined/acc" in rows[client] for client in (2, 4)] == [True, False]
    assert run.failures == {"untested": {4: 1}}


# Messages.


class Asked(Clients):
    """Remembers the jobs that arrive."""

    def __init__(self, context):
        super().__init__(context)
        self.jobs = []

    @property
    def verbs(self):
        return {"train": self.arrive}

    def arrive(self, content):
        self.jobs.append(self._job(*wire.asked("train", wire.Order, content)))
        return b""


def travel(jobs):
    """Return the jobs on arrival, and what was packed for several of them."""
    clients, stored = Asked(contexts(FedAvg(mlp(), optimizer=SGD), blobs())), {}
    common, engine = wire.Common(jobs), OneWorker()
    for item in jobs:
        # Clients refuse what the method has no entries for.
        clients._contexts.first.template |= item.broadcast.shared if item.broadcast else {}
        own, shared = common.split(wire.tensors_of(item.broadcast, item.kept))
        stored[id(shared)] = shared
        assert clients.answer("train", wire.packed("train", engine.order(item), own), shared) == b""
    return clients.jobs, [packed for packed in stored.values() if packed]


def test_what_jobs_share_travels_once():
    """Three jobs share 4 kB and have 4 kB each of their own: 4 kB stored, not 12."""
    data, common = blobs(), {"w": torch.randn(1000), "b": torch.zeros(0), "n": torch.tensor(3.0)}
    jobs = [
        job(data, c, Broadcast({**common, "own": torch.randn(1000)}, {"w": common["w"]}))
        for c in range(3)
    ]
    arrived, stored = travel(jobs)
    (shared,) = stored
    # The weights stand in it under both of their names.
    assert 8000 < len(shared) < 9000
    for before, after in zip(jobs, arrived, strict=True):
        assert list(after.broadcast.shared) == list(before.broadcast.shared)
        assert equal(after.broadcast.shared, before.broadcast.shared)
        assert equal(after.broadcast.extra, before.broadcast.extra)


def test_a_job_that_shares_nothing_follows_one_that_does():
    data, common = blobs(), {"w": torch.randn(5)}
    jobs = [job(data, c, Broadcast(dict(common))) for c in (0, 1)]
    jobs.append(job(data, 2, Broadcast({"w": torch.randn(5)})))
    arrived, _ = travel(jobs)
    for before, after in zip(jobs, arrived, strict=True):
        assert equal(after.broadcast.shared, before.broadcast.shared)


def test_what_a_client_keeps_travels_with_its_job():
    kept = {
        "strided": torch.randn(3, 4).t(),
        "half": torch.randn(2).bfloat16(),
        "count": torch.tensor(3),
        "empty": torch.zeros(0, 2),
    }
    (arrived,), stored = travel([job(blobs(), kept=kept)])
    assert stored == []
    assert arrived.broadcast is None
    assert list(arrived.kept) == list(kept)
    assert equal(arrived.kept, kept)
    assert all(arrived.kept[name].dtype == value.dtype for name, value in kept.items())


# Pools.


class Scripted(Helper):
    """A worker that dies at some messages, or does not start."""

    started = 0

    def __init__(self, deadly, starts=lambda number: True):
        Scripted.started += 1
        self.deadly, self.starts, self.ended = deadly, starts, 0
        self.number = Scripted.started

    def ready(self):
        if not self.starts(self.number):
            raise WorkerError("no room")

    def answer(self, task, content, common):
        if self.ended or content in self.deadly:
            self.deadly.discard(content if content == b"once" else None)
            raise DeathError("out of luck")
        return content + common

    def end(self):
        self.ended += 1


@pytest.fixture
def scripted():
    Scripted.started = 0
    pools = []

    def make(*deadly, count=2, **options):
        pools.append(Pool(partial(Scripted, {*deadly}, **options), count))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_a_worker_that_dies_is_replaced_and_the_job_runs_again(scripted):
    pool = scripted(b"once")
    assert pool.call("train", b"once", b"!") == b"once!"
    assert [pool.call("test", b"%d" % n, b"") for n in range(4)] == [b"0", b"1", b"2", b"3"]
    assert Scripted.started == 3


def test_a_job_of_which_all_workers_die_is_at_fault_and_no_other(scripted):
    pool = scripted(b"bad")
    with pytest.raises(DeadlyJobError, match="its worker died 3 times; last output: out of luck"):
        pool.call("train", b"bad", b"")
    assert pool.call("train", b"good", b"") == b"good"


def test_a_worker_that_does_not_start_ends_the_others(scripted):
    with pytest.raises(WorkerError, match="no room"):
        scripted(count=3, starts=lambda number: number < 3)


def test_the_others_go_on_if_a_replacement_does_not_start(scripted):
    pool = scripted(b"bad", b"once", starts=lambda number: number < 3)
    assert pool.call("train", b"once", b"") == b"once"
    assert pool.call("train", b"good", b"") == b"good"
    with pytest.raises(WorkerError, match="no room"):
        pool.call("train", b"bad", b"")


def test_nobody_waits_for_a_worker_after_the_end(scripted):
    pool = scripted(count=1)
    helper = pool._idle.get()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.call, "train", b"", b"")
        pool.close()
        with pytest.raises(WorkerError, match="the run has ended"):
            waiting.result(10)
    assert helper.ended


# Processes of this machine.


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
        # The check before the run plays rounds in the test's own process.
        fresh = self.mark is None or not self.mark.exists()
        if info.client == 1 and fresh and multiprocessing.parent_process() is not None:
            if self.mark is not None:
                self.mark.touch()
            print("out of luck", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_give_the_sequential_bits(workers):
    options = {"rounds": 2, "evaluate_at": ["post_local", "post_broadcast"]}
    beside = fit(with_dropout(), ProcessesEngine(workers), **options)
    count = f"{workers} clients"
    assert beside.header["engine"] == f"processes: {count} side by side, one op thread each"
    assert same(beside, fit(with_dropout(), SequentialEngine(), **options))


def test_processes_have_one_op_thread_whatever_the_run_has(one_op_thread):
    alone = fit(FedAvg(mlp(), optimizer=SGD), SequentialEngine(), 1)
    torch.set_num_threads(2)
    assert same(fit(FedAvg(mlp(), optimizer=SGD), "processes", 1), alone)


def test_a_process_that_dies_is_replaced_and_the_result_is_the_same(tmp_path):
    mark = tmp_path / "died"
    beside = fit(Dies(mark), ProcessesEngine(2))
    assert mark.exists()
    assert same(beside, fit(Dies(mark), SequentialEngine()))


def test_a_job_that_kills_every_process_leaves_the_round_to_the_others():
    options = {"rounds": 2, "sampler": UniformSampler(1.0)}
    with pytest.warns(UserWarning, match=parts("without client 1: ~ 3 times ~ code -9")):
        away = fit(Dies(), ProcessesEngine(2, on_error="absent"), **options)
    left = without({(1, 1), (1, 2)})
    alone = fit(FedAvg(mlp(), optimizer=HEAVY), SequentialEngine(), 2, sampler=left)
    assert away.fingerprint == alone.fingerprint
    assert away.failures == {"discarded": {1: 2}}


class Unreadable(type(blobs())):
    """Data that another process cannot read."""

    owner = os.getpid()

    def to(self, device):
        if os.getpid() != self.owner:
            raise FileNotFoundError("there is no folder data/")


def test_a_process_that_cannot_start_says_why():
    data = blobs()
    data.__class__ = Unreadable
    with pytest.raises(WorkerError, match="could not start: FileNotFoundError: there is no folder"):
        fit(FedAvg(mlp()), ProcessesEngine(1), data=data)
    assert issubclass(WorkerError, RUN_REFUSALS)  # The command line says it in a sentence.


class Computes(type(blobs())):
    """Data that are computed, by several op threads if there are any."""

    def to(self, device):
        torch.ones(10**7).exp()


def test_a_process_does_not_wait_for_op_threads_that_it_lacks():
    (data := blobs()).__class__ = Computes
    engine, found = ProcessesEngine(1), contexts(FedAvg(mlp(), optimizer=SGD), data)

    def start():
        torch.set_num_threads(2)
        data.to("cpu")
        engine.setup(found)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(60)
    assert not starting.is_alive()
    engine.close()


def test_an_error_in_a_process_names_the_client_and_leaves_it_alive():
    engine = ProcessesEngine(1)
    engine.setup(contexts(Misses((1, 1)), data := blobs()))
    with pytest.raises(
        JobError, match=r"round 1, client 1 \(.*, line \d+\): ArithmeticError: a st"
    ):
        list(engine.train([job(data, 1, Broadcast({}))]))
    (process,) = engine._pool._helpers
    assert process._process.daemon  # An end of the run without close() does not wait for it.
    (result,) = engine.train([job(data, 0, Broadcast({}))])
    assert result.client == 0
    engine.close()
    assert process._process.exitcode == -signal.SIGKILL


@pytest.mark.long
def test_a_process_ends_in_the_middle_of_a_job_when_the_run_is_killed(tmp_path):
    program = f"""
import time
from pathlib import Path
from lightning_modules.fedavg import FedAvg
from pfl.engines.processes import ProcessesEngine
from tests.engines.test_workers import fit
from tests.helpers.toy import mlp
import os

# The process itself tries the method before the run.
main = os.environ.setdefault("MAIN_OF_TEST", str(os.getpid()))

class Waits(FedAvg):
    def receive(self, broadcast, info):
        if main != str(os.getpid()):
            Path({str(tmp_path)!r}, str(os.getpid())).touch()
            time.sleep(60)

fit(Waits(mlp()), ProcessesEngine(2))
"""
    run = subprocess.Popen([sys.executable, "-c", program])
    until = time.monotonic() + 60
    while len([*tmp_path.iterdir()]) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    run.send_signal(signal.SIGKILL)
    run.wait()
    workers = [Path("/proc", file.name) for file in tmp_path.iterdir()]
    assert len(workers) == 2
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def alive(process):
    return process.is_dir() and process.joinpath("stat").read_text().split()[2] != "Z"


def test_a_device_is_not_for_processes():
    engine = ProcessesEngine()
    found = contexts(FedAvg(mlp()), blobs())
    found.fabric = type("Elsewhere", (), {"device": torch.device("cuda")})
    with pytest.raises(ValueError, match=parts("cuda ~ processes ~ loop.accelerator ~ cpu")):
        engine.setup(found)
