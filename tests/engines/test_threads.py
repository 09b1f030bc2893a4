"""Threads give the sequential engine's bits, in its order, and end when they should."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_modules.base import ClientModule
from lightning_modules.fedala import FedALA
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedrep import FedRep
from lightning_modules.nets import SplitNet
from lightning_modules.perfedavg import PerFedAvg
from lightning_modules.pfedvem import PFedVEM
from pfl.core.seeds import scoped
from pfl.core.types import Broadcast, Phase, Result
from pfl.engines import threads
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine, Turns
from pfl.training import client_round
from pfl.training.contexts import Contexts
from tests.engines.agreement import agree, fit, same
from tests.helpers import toy
from tests.helpers.discovery import build
from tests.helpers.federation import SGD, equal, job
from tests.helpers.toy import blobs, mlp

pytestmark = pytest.mark.usefixtures("one_op_thread")


class Waits(ClientModule):
    """Client i takes ``lengths[i]`` steps of a millisecond; it fails where that is negative."""

    def __init__(self, lengths):
        super().__init__(mlp())
        self.lengths = lengths

    def receive(self, broadcast, info):
        self.length = self.lengths[info.client]

    def plan(self):
        steps = lambda own, info: abs(self.lengths[info.client])  # noqa: E731
        return [Phase(name="local", steps=steps, objective=self.wait)]

    def wait(self, batch):
        if self.length < 0:
            raise ArithmeticError("a client failed")
        time.sleep(0.001)
        return {"ce": self(batch.x).square().mean()}


FOREVER = 10**9


def started(module, workers=2, precision="32-true"):
    """Return an engine on three equal clients, and their jobs."""
    data = blobs((4, 4, 4))
    engine = ThreadsEngine(workers)
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    line = engine.setup(Contexts(module, data, fabric))
    return engine, [job(data, client, Broadcast({})) for client in range(3)], line


def test_answers_come_in_the_order_of_the_jobs():
    """The first job ends last; with three workers all run at once."""
    engine, jobs, _ = started(Waits([60, 1, 20]), workers=3)
    assert [result.client for result in engine.train(jobs)] == [0, 1, 2]
    assert [result.client for result in engine.train(jobs[::-1])] == [2, 1, 0]
    engine.close()


def test_large_clients_start_first():
    """Two workers take the clients of 9 and 6 samples, the one of 1 has to wait."""

    class Notes(FedAvg):
        def receive(self, broadcast, info):
            order.append(info.samples)
            if len(order) <= 2:
                both_busy.wait(60)

    order = []
    both_busy = threading.Barrier(2)
    data = blobs((6, 1, 9))
    engine = ThreadsEngine(2)
    engine.setup(Contexts(Notes(mlp()), data, Fabric(accelerator="cpu", devices=1)))
    list(engine.train([job(data, client, Broadcast({})) for client in range(3)]))
    engine.close()
    assert sorted(order[:2]) == [6, 9]
    assert order[2] == 1


@pytest.mark.parametrize(("share", "started"), [(1, 10), (100, 4)])
def test_little_waits_for_a_client_that_takes_far_longer(share, started, monkeypatch):
    """Client 0 comes first and ends last: four others fill what may wait."""
    monkeypatch.setattr(threads, "WAITING", 0)
    monkeypatch.setattr(threads, "WAITING_SHARE", share)
    monkeypatch.setattr(threads.memory, "total", lambda: 400 * 3)
    data, done = blobs([2] * 11), []
    jobs = [job(data, client, Broadcast({})) for client in range(11)]

    def work(job):
        if job.info.client == 0:
            deadline = time.monotonic() + 60
            while len(done) < started and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.1)
            before.append(len(done))
        done.append(job.info.client)
        return Result(job.info.client, None, {"w": torch.zeros(1)}, {}, 1, 1, {}, True)

    before = []
    with ThreadPoolExecutor(2) as pool:
        turns = Turns(pool, work, dict(enumerate(jobs)), trains=True)
        assert [turns.take(place).client for place in range(11)] == [*range(11)]
    assert before == [started]


def test_whoever_wants_no_more_answers_frees_what_waits_to_start(monkeypatch):
    monkeypatch.setattr(threads, "WAITING", 0)
    monkeypatch.setattr(threads.memory, "total", lambda: 0)
    data, first = blobs([2] * 5), threading.Event()

    def work(job):
        if job.info.client == 0:
            first.wait(60)
        return Result(job.info.client, None, {"w": torch.zeros(1)}, {}, 1, 1, {}, True)

    jobs = [job(data, client, Broadcast({})) for client in range(5)]
    with ThreadPoolExecutor(2) as pool:
        turns = Turns(pool, work, dict(enumerate(jobs)), trains=True)
        threading.Timer(0.1, first.set).start()
        turns.end()


def test_a_failing_client_ends_the_others_and_is_reported():
    engine, jobs, _ = started(Waits([FOREVER, FOREVER, -1]), workers=3)
    with pytest.raises(ArithmeticError, match="a client failed"):
        list(engine.train(jobs))
    assert list(engine.test(jobs)) == [{}, {}, {}]
    engine.close()


def test_whoever_wants_no_more_answers_waits_for_nobody():
    engine, jobs, _ = started(Waits([1, FOREVER, FOREVER]))
    answers = engine.train(jobs)
    assert next(answers).client == 0
    answers.close()
    engine.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("pfl-client")]


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs a timer that sends signals")
def test_an_interrupt_ends_the_round():
    def interrupt(*_):
        raise KeyboardInterrupt

    engine, jobs, _ = started(Waits([FOREVER] * 3))
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(engine.train(jobs))
    finally:
        signal.signal(signal.SIGALRM, before)
    engine.close()


def test_workers_have_one_op_thread_and_the_caller_keeps_its_own():
    class Notes(FedAvg):
        def receive(self, broadcast, info):
            found.append(torch.get_num_threads())

    found = []
    torch.set_num_threads(3)
    engine, jobs, _ = started(Notes(mlp()))
    list(engine.train(jobs))
    assert found == [1, 1, 1]
    assert torch.get_num_threads() == 3
    fresh = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [3]
    engine.close()


def test_code_that_borrows_the_default_stream_draws_the_same_in_every_thread():
    class Draws(FedAvg):
        def receive(self, broadcast, info):
            with scoped(info.client):
                time.sleep(0.01)
                self.net.head.reset_parameters()

    engine, jobs, _ = started(Draws(mlp()), workers=3)
    beside = list(engine.train(jobs))
    engine.close()
    sequential = SequentialEngine()
    data = blobs((4, 4, 4))
    sequential.setup(Contexts(Draws(mlp()), data, Fabric(accelerator="cpu", devices=1)))
    for one, other in zip(beside, sequential.train(jobs), strict=True):
        assert equal(one.upload.shared, other.upload.shared)


class Repeats(nn.Module):
    """Dropout in a part whose forward pass is repeated in the backward pass, to save memory."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 6), nn.Dropout(), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


class Functions(nn.Module):
    """Draws by a layer, by functions and by hand, and has a part that draws by a function alone."""

    def __init__(self):
        super().__init__()
        self.drop, self.part = nn.Dropout(0.2), Function()

    def forward(self, x):
        z = nn.functional.dropout(self.part(self.drop(x)), 0.3, self.training)
        return z + 0.1 * torch.randn_like(z) if self.training else z


class Function(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.3, self.training)


DRAWING = {
    "dropout": nn.Dropout,
    "alpha": nn.AlphaDropout,
    "rrelu": nn.RReLU,
    "attention": toy.attention,
    "functions": Functions,
    "recurrent": lambda: toy.Sequences(nn.GRU(6, 6, 2, dropout=0.3, batch_first=True)),
}


@pytest.mark.parametrize(
    ("method", "layer"),
    [
        *((FedAvg, name) for name in DRAWING),
        *((kind, "dropout") for kind in (PerFedAvg, PFedVEM, FedALA, FedRep)),
    ],
)
def test_what_layers_draw_is_the_same_in_threads_in_every_kind_of_phase(method, layer):
    alone, beside = (
        fit(build(method, toy.drawing(DRAWING[layer]), optimizer=SGD), engine, rounds=2)
        for engine in (SequentialEngine(), ThreadsEngine(2))
    )
    assert beside.header["engine"].startswith("threads: 2 clients side by side")
    assert same(beside, alone)


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "processes"])
def test_what_a_function_draws_depends_on_no_engine_and_no_stream(engine):
    """Equal seeds of a run give equal numbers, whatever torch's default stream is at."""
    runs = []
    for seed, name in ((1, "sequential"), (2, engine)):
        with torch.random.fork_rng(), warnings.catch_warnings(action="error"):
            torch.manual_seed(seed)
            module = FedAvg(toy.drawing(Function), optimizer=SGD)
            runs.append(fit(module, name, rounds=2, precision="64-true"))
    if engine == "vectorised":
        agree(*runs)
    else:
        assert same(*runs)


def test_draws_in_a_backward_pass_run_sequentially():
    engine, _, line = started(FedAvg(SplitNet(Repeats(), nn.Linear(6, 3))), 2)
    what = "the network's random numbers cannot be drawn from a separate stream in each thread"
    assert line == f"sequential, not threads: {what}"
    engine.close()


@pytest.mark.parametrize(
    ("net", "workers", "precision", "reason"),
    [
        (mlp, 1, "32-true", "there is only one core or one client"),
        *(
            (net, 2, precision, "this precision is a global setting, which all threads share")
            for net in (mlp, lambda: toy.drawing(nn.Dropout))
            for precision in ("64-true", "bf16-true")
        ),
    ],
)
def test_what_threads_cannot_do_runs_sequentially(net, workers, precision, reason):
    engine, jobs, line = started(FedAvg(net()), workers, precision)
    assert line == f"sequential, not threads: {reason}"
    assert len(list(engine.train([replace(job, broadcast=None) for job in jobs]))) == 3
    engine.close()


def test_a_single_test_has_all_op_threads(monkeypatch):
    """One test in a worker would leave the other op threads idle."""
    engine, jobs, _ = started(FedAvg(mlp()), workers=2)
    torch.set_num_threads(2)
    counts = []
    on_splits = client_round.on_splits
    monkeypatch.setattr(
        client_round,
        "on_splits",
        lambda *args: counts.append(torch.get_num_threads()) or on_splits(*args),
    )
    asked = [replace(job, broadcast=None, splits=("test",)) for job in jobs]
    list(engine.test(asked[:1]))
    list(engine.test(asked))
    engine.close()
    assert counts == [2, 1, 1, 1]


def test_a_variable_of_a_hook_is_not_shared_by_threads():
    """Copies of a module have the same functions, and these the same variables."""
    net, found = mlp(), {}
    net.head.register_forward_pre_hook(lambda module, given: found.update(h=given[0].detach()))
    net.head.register_forward_hook(lambda module, given, z: z - found["h"].mean())
    run = fit(FedAvg(net, optimizer=SGD), ThreadsEngine(2), rounds=1)
    said = run.header["engine"]
    assert said.startswith("sequential, not threads: copies of the network share a variable")
    quiet = mlp()
    quiet.head.register_forward_hook(lambda module, given, z: 2 * z)
    side = fit(FedAvg(quiet, optimizer=SGD), ThreadsEngine(2), rounds=1).header["engine"]
    assert side.startswith("threads: 2 clients side by side")
