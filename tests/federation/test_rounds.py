"""The rounds of a run, beyond what the loop's own tests show."""

from __future__ import annotations

import weakref

from lightning_modules.fedavg import FedAvg
from pfl.core.types import Result
from pfl.federation.rows import over_clients
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.testing.federation import fit
from pfl.testing.toy import mlp


class Uploads(Callback):
    """Counts the uploads of earlier rounds that are alive whenever a client has trained."""

    def __init__(self):
        self.seen, self.alive = [], []

    def on_result(self, run, result):
        self.alive.append(
            sum(number <= run.round and ref() is not None for number, ref in self.seen)
        )
        self.seen.append((run.round + 1, weakref.ref(result.upload)))


def test_a_mean_over_clients_leaves_out_what_weighs_nothing():
    """Empty Poisson batches give a loss of no sample."""
    none, some = (Result(0, None, {}, {"ce": 2.0}, steps=1, samples=n) for n in (0, 3))
    assert over_clients({0: none}, "train", lambda result: result.train) == {}
    found = over_clients({0: none, 1: some}, "train", lambda result: result.train)
    assert found == {"train/ce": 2.0}


def test_nothing_of_a_round_is_held_while_the_next_one_trains():
    uploads = Uploads()
    fit(FedAvg(mlp()), callbacks=[uploads], sampler=UniformSampler(), engine="sequential")
    assert len(uploads.alive) == 9
    assert not any(uploads.alive)
