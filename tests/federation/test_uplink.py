"""Steps of the uplink that a stranger writes: an attack, a robust rule, and others."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from pfl.core.server import Server
from pfl.engines.transport import wire
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.testing.federation import fit, outcome
from pfl.testing.toy import mlp
from pfl.training.uplink import UplinkStep
from tests.helpers.messages import parts

ALL = UniformSampler()


@dataclass(frozen=True)
class SignFlip(UplinkStep):
    """Some clients send the negative of their weights, scaled."""

    clients: tuple[int, ...]
    scale: float = 10.0

    def sent(self, job, result):
        if job.info.client not in self.clients:
            return result
        flipped = {name: -self.scale * value for name, value in result.upload.shared.items()}
        return replace(result, upload=replace(result.upload, shared=flipped))


@dataclass(frozen=True)
class Median(UplinkStep):
    """The server takes the median of each weight over the clients."""

    def merge(self, state, uploads, aggregate):
        sent = {n: [one.shared[n] for one in uploads] for n in uploads[0].shared}
        middle = {name: torch.stack(values).median(0).values for name, values in sent.items()}
        return aggregate(state, [replace(one, shared=middle) for one in uploads])


def run(*steps, **options):
    return fit(FedAvg(mlp()), **{"sampler": ALL, "uplink": [*steps] or None, **options})


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_an_attack_and_a_robust_rule_give_the_same_bits_under_every_engine(engine):
    steps = SignFlip((1,)), Median()
    one, other = run(*steps, engine="sequential"), run(*steps, engine=engine)
    assert other.fingerprint == one.fingerprint
    assert outcome(other)["history"] == outcome(one)["history"]


def test_an_attack_is_seen_and_a_robust_rule_withstands_it():
    """With weights of norm w, the attacked mean of three is (w + w - 10 w) / 3."""

    def norms(*steps):
        found = run(*steps, rounds=1, engine="sequential")
        return torch.cat([v.flatten() for v in found.server.shared.values()]).norm().item()

    plain = norms()
    assert norms(SignFlip((1,))) > 2 * plain
    assert norms(SignFlip((1,)), Median()) == pytest.approx(plain, rel=0.2)


def test_stacked_clients_take_their_steps_as_well():
    options = {"precision": "64-true", "rounds": 2}
    one, stack = (
        run(SignFlip((0, 2)), engine=engine, **options) for engine in ("sequential", "vectorised")
    )
    for name, value in one.server.shared.items():
        torch.testing.assert_close(stack.server.shared[name], value, rtol=0, atol=1e-10)


@dataclass(frozen=True)
class Notes(UplinkStep):
    """Notes each place in which it acts."""

    name: str
    calls: ClassVar = []

    def job(self, job, state, uploads):
        self.calls.append(f"job {self.name}")
        return super().job(job, state, uploads)

    def sent(self, job, result):
        self.calls.append(f"sent {self.name}")
        return result

    def received(self, job, result):
        self.calls.append(f"received {self.name}")
        return result

    def merge(self, state, uploads, aggregate):
        self.calls.append(f"merge {self.name}")
        return aggregate(state, uploads)


def test_steps_act_in_order_and_on_arrival_in_reverse():
    Notes.calls.clear()
    one = UniformSampler(0.34)
    run(Notes("a"), Notes("b"), rounds=1, sampler=one, engine="sequential")
    assert Notes.calls == [
        # Once before the first round, to see what the chain does.
        *("job a", "job b"),
        *("job a", "job b", "sent a", "sent b", "received b", "received a", "merge a", "merge b"),
    ]


def test_only_steps_that_act_at_clients_travel():
    seen = []

    @dataclass(frozen=True)
    class Last(UplinkStep):
        def job(self, job, state, uploads):
            seen.append(job.steps)
            return job

    run(Median(), SignFlip((0,)), Last(), rounds=1, sampler=UniformSampler(0.34))
    assert seen == [(SignFlip((0,)),)] * 2


class Frugal(UplinkStep):
    """A step that pays for two rounds, hides what it can, and says so."""

    def max_rounds(self, rounds):
        return min(rounds, 2)

    def described(self, planned, rounds):
        return {"frugal": f"{rounds} of {planned}"}

    def disclosed(self, info):
        return replace(info, samples=1)

    def shown(self, result):
        return replace(result, upload=None)


def test_a_step_may_end_a_run_and_hide_sizes_and_uploads():
    told, seen = [], []

    class Curious(Server):
        def init(self, shared, clients):
            # The run's own server is the last one: those of trials before it see an excerpt.
            told[:] = [info.samples for info in clients]
            return super().init(shared, clients)

    class Method(FedAvg):
        def server(self):
            return Curious()

    class Watch(Callback):
        def on_result(self, run, result):
            seen.append(result.upload)

    found = fit(Method(mlp()), rounds=5, uplink=[Frugal()], sampler=ALL, callbacks=[Watch()])
    assert (found.round, found.header["frugal"]) == (2, "2 of 5")
    assert told == [1, 1, 1]
    assert seen == [None] * 6


def test_a_step_travels_by_its_class_and_is_checked_on_arrival():
    told = wire.StepRecord.of(SignFlip((1, 2)))
    assert told.name == f"{__name__}.SignFlip"
    assert told.step() == SignFlip((1, 2))
    for wrong in ({"clients": "x"}, {"clients": [1], "scale": "2"}, {"clients": [1], "more": 0}):
        with pytest.raises(ValueError, match="SignFlip"):
            wire.StepRecord(told.name, wrong).step()
    with pytest.raises(ValueError, match=parts("no step ~ 'os.system' is installed here")):
        wire.StepRecord("os.system", {}).step()


def test_a_resume_in_python_keeps_its_steps(tmp_path):
    """Or rounds before and after would not be of one run."""
    place = {"default_root_dir": str(tmp_path), "name": "x"}
    begun = run(SignFlip((1,)), rounds=1, **place)
    for steps in ((), (SignFlip((2,)),), (Median(),)):
        with pytest.raises(Exception, match=r"loop\.uplink\.0"):
            run(*steps, ckpt_path=str(begun.folder), **place)
    assert run(SignFlip((1,)), rounds=2, ckpt_path=str(begun.folder), **place).round == 2
