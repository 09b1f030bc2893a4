"""What a stack tells of each client: whether its numbers are finite, its scores, its rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lightning_modules.fedavg import FedAvg, FedAvgP
from pfl.core.types import Broadcast, Pass
from pfl.engines.sequential import SequentialEngine
from pfl.engines.stack.tally import StackedTally
from pfl.engines.vectorised import VectorisedEngine
from tests.helpers.federation import SGD, contexts, fit, job
from tests.helpers.toy import blobs, mlp
from tests.testing.broken import Method


class LossAlone(FedAvg):
    """Client 1 has a term that is no number, and which no weight depends on."""

    def losses(self, batch):
        marked = batch.x[:, 0].isinf()
        found = super().losses(batch._replace(x=batch.x.nan_to_num(posinf=1.0)))
        return {**found, "mark": torch.where(marked, math.nan, 0.0).sum()}


class WeightsAlone(FedAvg):
    """Client 1 uploads a weight that is no number; its losses are numbers."""

    def upload(self, info):
        found = super().upload(info)
        if info.client == 1:
            found.shared["net.head.bias"][0] = math.nan
        return found


@pytest.mark.parametrize("engine", [SequentialEngine, VectorisedEngine])
@pytest.mark.parametrize("method", [LossAlone, WeightsAlone])
def test_either_the_loss_or_the_weights_are_enough(method, engine):
    data = blobs()
    if method is LossAlone:
        data.splits["train"][1][0][:, 0] = math.inf
    module = method(mlp(), optimizer=SGD)
    used = engine()
    line = used.setup(contexts(module, data))
    assert engine is SequentialEngine or line.startswith("vectorised"), line
    sent = Broadcast({name: module.state_dict()[name].clone() for name in module.shared_names()})
    results = list(used.train([job(data, client, sent) for client in range(3)]))
    assert [result.finite for result in results] == [True, False, True]
    bad = results[1]
    assert all(map(math.isfinite, bad.train.values())) == (method is WeightsAlone)
    weights = bad.upload.shared.values()
    assert all(value.isfinite().all() for value in weights) == (method is LossAlone)


@pytest.mark.parametrize("engine", [SequentialEngine, VectorisedEngine])
def test_the_global_model_is_tested_as_it_was_sent(engine):
    """FedAvg-P tunes before a test, but only the personalised models."""
    data, scores = blobs(), {}
    for method in (FedAvg, FedAvgP):
        module = method(mlp(), optimizer=SGD)
        used = engine()
        used.setup(contexts(module, data))
        sent = Broadcast({n: module.state_dict()[n].clone() for n in module.shared_names()})
        for model in ("global", "personal"):
            asked = [
                replace(job(data, client, sent), splits=("test",), model=model)
                for client in range(3)
            ]
            scores[method, model] = list(used.test(asked))
    assert scores[FedAvgP, "global"] == scores[FedAvg, "global"]
    assert scores[FedAvgP, "personal"] != scores[FedAvg, "personal"]


@pytest.mark.parametrize("engine", [SequentialEngine, VectorisedEngine])
def test_without_a_common_test_set_there_is_no_score_on_it(engine, monkeypatch):
    data = blobs()
    monkeypatch.setattr(data, "pooled_test", lambda: None)
    used = engine()
    used.setup(contexts(FedAvg(mlp()), data))
    asked = [job(data, client, splits=("test", "pooled")) for client in range(3)]
    assert [[*found] for found in used.test(asked)] == [["test"]] * 3


# Sums and rows.


def test_a_pass_gets_the_rows_since_the_last_one():
    """Of its own client, without the padding."""
    tally = StackedTally(2)
    for start, sizes in ((0.0, {0: 2, 1: 1}), (10.0, {0: 1})):
        rows = start + torch.arange(4.0).reshape(2, 2)
        tally.collect(sizes, {"z": rows})
        found = [tally.clients[client].totals({}).rows for client in range(2)]
        expected = [rows[client][:size].tolist() for client, size in sizes.items()]
        assert [own["z"].tolist() for own in found if own] == expected
    assert [tally.clients[client].totals({}).rows for client in range(2)] == [{}, {}]


class CountsRows(Method):
    """Two passes collect rows of one name; the second counts what it gets."""

    def plan(self):
        def collect(batch):
            return {"z": batch.x[:, 0]}

        def count(totals):
            return {"visits": self.visits + len(totals.rows["z"])}

        first = Pass(name="first", collect=collect, then=lambda totals: {})
        return [*super().plan()[:1], first, Pass(name="second", collect=collect, then=count)]


def test_two_passes_of_one_name_are_told_apart_in_a_run():
    data = blobs()
    for engine in (SequentialEngine(), VectorisedEngine()):
        run = fit(CountsRows(mlp(), optimizer=SGD), data, 1, engine=engine)
        assert "not vectorised" not in run.header["engine"]
        for client, kept in run.kept.items():
            assert kept["visits"] == len(data.split(client, "train"))
