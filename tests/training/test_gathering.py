"""Uploads of servers that only average are summed as they arrive, with the same bits."""

import re
import threading
import weakref
from dataclasses import dataclass, replace
from functools import partial

import pytest

from lightning_modules import CFL, SCAFFOLD, FedAS, FedAvg, FedPer, FedProto
from pfl.core.folds import Uploads
from pfl.core.server import Server
from pfl.core.state import weighted_mean
from pfl.engines import threads
from pfl.engines.sequential import SequentialEngine
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.training.uplink import UplinkStep
from tests.engines.agreement import fit, same
from tests.helpers.federation import SGD
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp, normed


class Watches(Callback):
    """Counts the uploads of a round that are still in memory when the next one arrives."""

    def __init__(self):
        self.alive, self.seen = [], 0

    def on_result(self, run, result):
        self.alive = [one for one in self.alive if one() is not None]
        self.seen = max(self.seen, len(self.alive))
        self.alive += [weakref.ref(value) for value in result.upload.shared.values()]


class Keeps(Server):
    """Averages as its base does, once it has all uploads."""

    def begin(self, state, senders):
        return {"uploads": Uploads()}

    def finish(self, state, folded):
        sent = [upload.shared for upload in folded["uploads"]]
        return replace(state, shared=weighted_mean(sent, folded.shares))


class Kept(FedAvg):
    def server(self):
        return Keeps(weighting=self.weighting)


@dataclass(frozen=True)
class Merges(UplinkStep):
    """Needs all uploads at once."""

    def merge(self, state, uploads, aggregate):
        return aggregate(state, uploads)


@dataclass(frozen=True)
class Withholds(UplinkStep):
    """Might withhold any upload."""

    def received(self, job, result):
        return result


@pytest.mark.parametrize("options", [{}, {"weighting": "uniform"}, {"buffers": "average"}])
def test_a_sum_has_the_bits_of_the_mean_of_all(options):
    """Also beside a client with one sample, which takes no step under batch norm."""
    with pytest.warns(UserWarning, match="takes no step"):
        runs = [
            fit(kind(normed(), optimizer=SGD, **options), SequentialEngine(), data=blobs((4, 9, 1)))
            for kind in (FedAvg, Kept)
        ]
    assert same(*runs)


@pytest.mark.parametrize(
    ("method", "loop", "most"),
    [
        (FedAvg, {}, 0),
        (FedPer, {}, 0),
        (FedAS, {}, 0),
        (SCAFFOLD, {}, 0),
        (FedProto, {}, 0),
        (FedAvg, {"on_nonfinite": "skip"}, 0),
        (FedAvg, {"uplink": [Withholds()]}, 0),
        # A server and a step that need all uploads at once.
        (CFL, {}, 4),
        (FedAvg, {"uplink": [Merges()]}, 4),
    ],
)
def test_an_upload_is_gone_when_the_next_one_arrives(method, loop, most):
    watch = Watches()
    data = blobs((4, 9, 2, 17, 6))
    fit(method(mlp(), optimizer=SGD), SequentialEngine(), 1, data, callbacks=[watch], **loop)
    assert watch.seen <= most * len(method(mlp()).shared_names())
    assert (watch.seen > 0) == (most > 0)


class Sends(FedAvg):
    """Notes how many uploads exist at a time."""

    def __init__(self, alive, **options):
        super().__init__(mlp(), **options)
        self.alive = alive

    def upload(self, info):
        sent = super().upload(info)
        with self.alive.lock:
            self.alive.uploads.add(sent.shared["net.head.weight"])
            self.alive.most = max(self.alive.most, len(self.alive.uploads))
        return sent


class Alive:
    """Shared by copies of a method."""

    def __init__(self):
        self.lock, self.uploads, self.most = threading.Lock(), weakref.WeakSet(), 0

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize("waiting", [0, 2**30])
def test_threads_hold_few_uploads_where_the_largest_clients_come_last(waiting, monkeypatch):
    """The largest start first only while little waits; else all would wait for the first one.

    One waits, one is being added, and each of two threads may still hold the one that it made.
    """
    monkeypatch.setattr(threads, "WAITING", waiting)
    # Else results would wait for a client whose thread gets no core.
    monkeypatch.setattr(threads.memory, "total", lambda: 0)
    alive, data = Alive(), blobs([4 + client for client in range(24)])
    engine, everyone = threads.ThreadsEngine(2), UniformSampler(1.0)
    fit(Sends(alive, optimizer=SGD), engine, 1, data, sampler=everyone)
    assert (alive.most <= 4) == (waiting == 0)


@pytest.mark.parametrize(
    ("method", "loop", "line"),
    [
        (FedAvg, {"on_nonfinite": "skip"}, None),
        (FedAS, {}, None),
        (
            partial(FedAS, trace_normaliser="softmax"),
            {},
            "FedASServer (traced) needs all at once: 4 of 1.2 MB, 5 MB a",
        ),
        (CFL, {}, "CFLServer (uploads) needs all at once: 4 of 1.8 MB, 7 MB a round"),
        (FedAvg, {"uplink": [Merges()]}, "Merges needs all at once: 4 of 1.8 MB, 7 MB a round"),
    ],
)
def test_the_header_says_what_held_uploads_need(method, loop, line):
    """Of 5 x 50,000 + 50,000 numbers in the backbone and 3 x 50,000 + 3 in the head."""
    wide = mlp(hidden=50_000)
    run = fit(method(wide, optimizer=SGD), SequentialEngine(), 1, blobs((2, 2, 2, 2, 2)), **loop)
    told = run.header.get("uploads")
    assert told is None if line is None else re.search(parts(line), told)
