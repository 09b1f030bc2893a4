"""A method that raises: round, client, phase and line are told, under every engine."""

from __future__ import annotations

import inspect
import pickle
from functools import partial

import pytest
import torch

from lightning_modules.fedavg import FedAvg, FedAvgP
from lightning_modules.steps.phases import part_phase
from pfl.core.failure import JobError, failure_line, line_of
from pfl.core.server import Server
from pfl.core.types import Broadcast, Pass, Phase
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.sampling import UniformSampler
from pfl.training.declaration import MethodError
from tests.engines.test_workers import OneWorker
from tests.helpers.federation import SGD, contexts, fit, job
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp

FILE = "tests/engines/test_failures.py"
EVERYONE = UniformSampler()


def line(function):
    """Return the line of a function of one line."""
    return inspect.getsourcelines(function)[1] + 1


def late(info):
    """Fail in the second round, for client 1."""
    return 1 / 0 if (info.client, info.round) == (1, 2) else None


class InReceive(FedAvg):
    def receive(self, broadcast, info):
        late(info)
        super().receive(broadcast, info)


class InUpload(FedAvg):
    def upload(self, info):
        late(info)
        return super().upload(info)


class InEpochs(FedAvg):
    def plan(self):
        epochs = lambda own, info: late(info) or 1  # noqa: E731
        return [Phase(name="local", objective=self.losses, epochs=epochs)]


class InPersonalise(FedAvg):
    def personalise(self, broadcast, info):
        late(info)
        super().personalise(broadcast, info)


@pytest.mark.parametrize("engine", [SequentialEngine, lambda: ThreadsEngine(2), VectorisedEngine])
@pytest.mark.parametrize(
    ("method", "where"),
    [(InReceive, ""), (InUpload, ""), (InEpochs, "phase 'local'"), (InPersonalise, "before the t")],
)
def test_round_client_phase_and_line_are_told(engine, method, where):
    with pytest.raises(ZeroDivisionError) as found:
        fit(method(mlp(), optimizer=SGD), blobs(), 2, engine=engine(), sampler=EVERYONE)
    said = failure_line(found.value)
    assert said.startswith("round 2, client")
    assert "client 1" in said or "clients 0, 2, 1 as one stack" in said
    assert where in said
    place = f"({FILE}, line {line(late) + 1}): ZeroDivisionError: division by zero"
    assert said.endswith(place)
    assert "\n" not in said


def misnames(method):
    return part_phase(method, "haed", 1)


def test_the_users_own_line_is_told_though_ours_raises():
    with pytest.raises(KeyError, match="haed") as found:
        misnames(FedAvg(mlp()))
    assert line_of(found.value) == f" ({FILE}, line {line(misnames)})"


class Exhausts(FedAvg):
    """A stack needs more memory than there is, from the second round on."""

    def losses(self, batch):
        if torch.is_grad_enabled() and self.full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0")
        return super().losses(batch)

    full = False


def test_memory_that_is_exhausted_in_a_stack_is_told_with_its_clients():
    module = Exhausts(mlp(), optimizer=SGD)
    data = blobs()
    engine = VectorisedEngine()
    assert engine.setup(contexts(module, data)).startswith("vectorised")
    module.full = True
    jobs = [job(data, client, Broadcast({}), round=4) for client in (1, 2)]
    with pytest.raises(torch.OutOfMemoryError) as found:
        list(engine.train(jobs))
    said = failure_line(found.value)
    assert said.startswith("round 4, clients 1, 2 as one stack, phase 'local' (")
    assert "out of memory (OutOfMemoryError: CUDA" in said
    assert "GPU 0" not in said
    assert "data.batch_size" in said


def test_the_test_of_a_model_is_told():
    class Fails(FedAvgP):
        def adapt(self):
            return [Pass(name="look", then=lambda totals: {"w": 1 // 0})]

    with pytest.raises(ZeroDivisionError) as found:
        fit(Fails(mlp(), optimizer=SGD), blobs(), 1)
    assert failure_line(found.value).startswith("round 1, client 0, before the test, pass 'look' (")


ENGINES = SequentialEngine, VectorisedEngine, partial(OneWorker, on_error="absent")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_common_test_set_is_told_by_its_name_and_never_absent(engine, monkeypatch):
    data = blobs()
    common = data.pooled_test()
    common.x = common.x[:, :1]
    monkeypatch.setattr(data, "pooled_test", lambda: common)
    with pytest.raises((RuntimeError, JobError)) as found:
        fit(FedAvg(mlp(), optimizer=SGD), data, 1, engine=engine())
    assert failure_line(found.value).startswith("round 1, the common test set")


@pytest.mark.parametrize("verb", ["finish", "broadcast", "init"])
def test_a_server_that_fails_is_told(verb):
    class Fails(Server):
        def init(self, shared, clients):
            return super().init(shared, clients[0 if verb != "init" else "first"])

        def finish(self, state, folded):
            return super().finish(state, folded if verb != "finish" else None)

        def broadcast(self, state, client, round):
            return super().broadcast(state, client / (verb != "broadcast"), round)

    module = FedAvg(mlp(), optimizer=SGD)
    module.server = Fails
    with pytest.raises((AttributeError, ZeroDivisionError, TypeError)) as found:
        fit(module, blobs(), 1, sampler=EVERYONE)
    where = {
        "finish": "round 1, the server's aggregation",
        "broadcast": "round 1, the server's broadcast to client 0",
        "init": "the server's init",
    }[verb]
    assert failure_line(found.value).startswith(f"{where} ({FILE}, line ")


@pytest.mark.parametrize("verb", ["plan", "adapt", "server"])
def test_a_declaration_that_fails_is_told(verb):
    class Fails(FedAvg):
        pass

    setattr(Fails, verb, lambda self: {}["net.haed"])
    with pytest.raises(KeyError) as found:
        fit(Fails(mlp()), blobs(), 1)
    where = "the method's server()" if verb == "server" else f"Fails.{verb}()"
    assert failure_line(found.value).startswith(f"{where} ({FILE}, line ")


def test_what_says_all_in_its_own_words_gets_no_note():
    class Sets(FedAvg):
        def plan(self):
            return [Pass(name="look", then=lambda totals: {"w": torch.ones(1)})]

    with pytest.raises(MethodError, match=parts("Sets ~ 'w' ~ buffer")) as found:
        fit(Sets(mlp(), optimizer=SGD), blobs(), 1)
    assert failure_line(found.value) is None


# In another process.


def shipped(module, data, client):
    """Send a job to a worker, without another process."""
    engine = OneWorker()
    engine.setup(contexts(module, data))
    try:
        return list(engine.train([job(data, client, Broadcast({}), round=2)]))
    finally:
        engine.close()


class OddError(Exception):
    """An error that no other process can read."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class InWorker(FedAvg):
    def upload(self, info):
        raise OddError(1, 2)


def test_a_worker_s_error_comes_back_in_words():
    with pytest.raises(JobError) as found:
        shipped(InWorker(mlp(), optimizer=SGD), blobs(), 1)
    arrived = pickle.loads(pickle.dumps(found.value))
    place = f"({FILE}, line {line(InWorker.upload)})"
    assert failure_line(arrived) == str(arrived) == f"round 2, client 1 {place}: OddError: 1 and 2"
