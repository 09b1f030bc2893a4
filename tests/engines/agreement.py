"""A short federation with unequal clients, momentum and weight decay, on any engine."""

from __future__ import annotations

import pytest

from datamodules import IID, CropFlip, Dirichlet, Synthetic
from lightning_modules.fedavg import FedAvg
from pfl.core.state import named
from pfl.core.types import Cohort
from pfl.engines.stack.feed import StackedFeed
from pfl.engines.stack.schedule import Schedule
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.testing.compare import distance
from tests.helpers.discovery import build
from tests.helpers.federation import HEAVY, SGD
from tests.helpers.toy import blobs

SIZES = (4, 9, 1, 17, 6)


def module_of(method, net, **options):
    """Build the method with momentum and weight decay, or plain steps where it refuses them."""
    module = build(method, net(), optimizer=HEAVY, **options)
    try:
        module.configure_optimizers()
    except ValueError:
        module = build(method, net(), optimizer=SGD, **options)
    return module


def fit(module, engine, rounds=3, data=None, ckpt_path=None, **loop):
    loop = FederatedLoop(
        rounds, engine=engine, progress=False, **{"sampler": UniformSampler(0.8), **loop}
    )
    return loop.fit(module, data or blobs(SIZES), ckpt_path=ckpt_path)


def without(missing):
    """Return a sampler of all clients but those that are missing, as pairs with a round."""

    def sampler(eligible, rng, number):
        left = tuple(client for client in eligible if (client, number) not in missing)
        return Cohort(left, left)

    return sampler


def numbers(run):
    """Return the rows of all rounds, without the times."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.history]


def same(one, other):
    """Return whether two runs have the same bits, and the same scores undefined."""
    rows = [pytest.approx(row, rel=0, abs=0, nan_ok=True) for row in numbers(other)]
    return one.fingerprint == other.fingerprint and numbers(one) == rows


def on_host(value):
    return {name: tensor.cpu() for name, tensor in named(value).items()}


def agree(found, expected):
    """Compare servers, kept states and the scores of all rounds, wherever they were computed."""
    assert found.keeper.tickets == expected.keeper.tickets
    kept = [run.keeper.packed()["kept"] for run in (found, expected)]
    for one, other in ((found.server, expected.server), kept):
        assert distance(on_host(one), on_host(other)) < (1e-10, "")
    for row, wanted in zip(numbers(found), numbers(expected), strict=True):
        for key, value in wanted.items():
            assert row[key] == pytest.approx(value, abs=1e-6, nan_ok=True), key


def around_steps(monkeypatch, begins, ends):
    """Call functions when a stacked step has its inputs, and when it is over."""
    inputs, finished = StackedFeed.inputs, Schedule.finished

    def beginning(feed, number):
        found = inputs(feed, number)
        begins()
        return found

    def ending(schedule, number):
        ends()
        return finished(schedule, number)

    monkeypatch.setattr(StackedFeed, "inputs", beginning)
    monkeypatch.setattr(Schedule, "finished", ending)


class Logs(FedAvg):
    """FedAvg whose steps log a mean over their samples, a number, and one that is not finite."""

    def losses(self, batch):
        outputs = self(batch.x)
        mass = outputs.square().mean(1)
        if batch.weight is not None:
            mass = (mass * batch.weight).sum() / batch.weight.sum()
        self.log("mass", mass.mean())
        self.log_dict({"one": 1.0, "lost": float("nan")}, on_epoch=True, prog_bar=True)
        return self.supervised(outputs, batch)


def images(samples=48, crops=False):
    """Return three clients of unequal size; finished ones leave a stack if crops are random.

    A dozen samples belong to no client.
    """
    like = {"classes": 3, "channels": 1, "size": 24}
    return Synthetic(
        samples=samples,
        **like,
        public=Synthetic(samples=12, **like, num_clients=1, partition=IID()),
        num_clients=3,
        partition=Dirichlet(0.5),
        batch_size=4,
        test_fraction=0.25,
        augment=CropFlip(padding=2) if crops else None,
    )
