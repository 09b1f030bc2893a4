"""Interrupted runs: a round counts wholly, with its tests and row, or not at all."""

from __future__ import annotations

import csv

import pytest

from lightning_modules.fedper import FedPer
from pfl.engines.sequential import SequentialEngine
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.helpers.toy import blobs, mlp


class EndsInTests(SequentialEngine):
    def test(self, jobs):
        for number, scores in enumerate(super().test(jobs)):
            if jobs[0].info.round == 3 and number == 1:
                raise KeyboardInterrupt
            yield scores


class EndsInTraining(SequentialEngine):
    def train(self, jobs):
        for number, result in enumerate(super().train(jobs)):
            if jobs[0].info.round == 3 and number == 1:
                raise KeyboardInterrupt
            yield result


class EndsInACallback(Callback):
    def on_round_end(self, run, result):
        if result.round == 3:
            raise KeyboardInterrupt


def fit(folder, engine="auto", callbacks=(), ckpt_path=None):
    loop = FederatedLoop(
        rounds=5,
        sampler=UniformSampler(0.7),
        engine=engine,
        callbacks=list(callbacks),
        default_root_dir=str(folder),
        progress=False,
    )
    return loop.fit(FedPer(mlp()), blobs(), ckpt_path=ckpt_path)


def table(path):
    """All columns of a table but the times."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize(
    ("engine", "callbacks"),
    [(EndsInTests(), ()), (EndsInTraining(), ()), ("auto", [EndsInACallback()])],
    ids=["tests", "training", "callbacks"],
)
def test_an_interrupted_round_leaves_no_trace(engine, callbacks, tmp_path):
    whole = fit(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "ended", engine, callbacks)
    resumed = fit(tmp_path / "ended", ckpt_path="last")
    assert resumed.fingerprint == whole.fingerprint
    for name in ("metrics.csv", "clients.csv"):
        assert table(resumed.folder / name) == table(whole.folder / name)
    assert resumed.history[-1]["comm/bytes_total"] == whole.history[-1]["comm/bytes_total"]
