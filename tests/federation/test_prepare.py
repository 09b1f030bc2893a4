"""Preparing a federation: what was begun is ended, and the process computes as before."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from pfl.callbacks.early_stopping import EarlyStopping
from pfl.callbacks.wandb import WandB
from pfl.core.devices import kernels
from pfl.engines.keeper import Keeper
from pfl.engines.processes import ProcessesEngine
from pfl.engines.sequential import SequentialEngine
from pfl.engines.threads import ThreadsEngine
from pfl.federation.cost import Cost, LogNormal
from pfl.federation.sampling import BernoulliSampler, UniformSampler
from pfl.loop import FederatedLoop
from pfl.testing.federation import fit
from pfl.testing.toy import blobs, mlp
from tests.helpers.messages import parts, refuses


@pytest.mark.parametrize(
    ("owner", "given", "message"),
    [
        (EarlyStopping, {"mode": "maximum"}, "mode must be one of max, min, got 'maximum'"),
        (
            FederatedLoop,
            {"evaluate_at": "post_local"},
            "one of post_broadcast, post_local, got 'p'",
        ),
        (
            FederatedLoop,
            {"evaluate_at": ["after_local"]},
            "each of evaluate_at ~ got 'after_local'",
        ),
        (FederatedLoop, {"on_nonfinite": "Stop"}, "on_nonfinite must be one of stop, skip"),
    ],
)
def test_other_words_than_the_known_ones_are_refused(owner, given, message):
    with pytest.raises(ValueError, match=parts(message)):
        owner(**given)


def test_numbers_out_of_range_are_refused_by_name():
    """By the loop and by all that a configuration of it names."""
    for owner, names in {
        FederatedLoop: ("rounds", "evaluate_every", "checkpoint_every", "workers"),
        EarlyStopping: ("patience",),
        WandB: ("every",),
        ThreadsEngine: ("workers",),
        ProcessesEngine: ("workers",),
    }.items():
        refuses(owner, "at least 1", **dict.fromkeys(names, 0))
    refuses(FederatedLoop, "negative", kept_memory=-1)
    refuses(Keeper, "negative", memory=-1)
    refuses(EarlyStopping, "negative", min_delta=-0.1)
    refuses(UniformSampler, "(0, 1]", fraction=(0, -0.1, 1.1))
    refuses(UniformSampler, "4294967295", numpy_seed=(-1, 2**32))
    refuses(BernoulliSampler, "(0, 1]", probability=(0, -0.1, 1.1))
    refuses(BernoulliSampler, "negative", numpy_seed=-1, minimum=-1)
    refuses(partial(Cost, down=1, speed=1), "positive", up=0)
    refuses(partial(LogNormal, 1.0), "[0, 10]", sigma=(-1.0, 11.0, float("nan")))
    refuses(LogNormal, "finite", median=float("inf"))


class Fails(UniformSampler):
    def __call__(self, clients, rng, round):
        raise RuntimeError("no cohort")


class Watched(SequentialEngine):
    closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Settings that no run has; they are the process's own again afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    yield computed()
    torch.set_num_threads(before)


def computed():
    """How the process computes."""
    return torch.get_num_threads(), kernels()


def test_an_error_after_the_engines_setup_closes_it(settings):
    engine = Watched()
    with pytest.raises(RuntimeError, match="no cohort"):
        fit(FedAvg(mlp()), engine=engine, sampler=Fails())
    assert engine.closed == 1
    assert computed() == settings


def test_runs_that_take_turns_leave_the_process_as_it_was(settings):
    """And the body of a loop over rounds computes as its writer wants."""
    loops = [
        FederatedLoop(3, accelerator="cpu", progress=False).rounds_of(FedAvg(mlp()), blobs())
        for _ in range(2)
    ]
    for _ in range(2):
        for loop in loops:
            next(loop)
            assert computed() == settings
    for loop in loops:
        loop.close()
    assert computed() == settings
