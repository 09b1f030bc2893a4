"""What is tested after a round, and what is not."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.pfedvem import PFedVEM
from pfl.engines.sequential import SequentialEngine
from pfl.federation.evaluator import FEW, SAMPLE
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.results.runs import RunFolder
from tests.helpers.discovery import build
from tests.helpers.federation import SGD, fit
from tests.helpers.messages import parts
from tests.helpers.tables import csv_rows
from tests.helpers.toy import blobs, mlp, normed

GLOBAL = ("test/global/acc", "test/pooled/acc")


def emptied(*splits, **options):
    data = blobs(**options)
    for split in splits:
        data.splits[split] = [(x[:0], y[:0]) for x, y in data.splits[split]]
    return data


def test_a_run_in_which_no_model_is_tested_says_so():
    """FedPer has no global model for the common test set; data without one leave FedAvg nothing."""
    for method, pooled, lacks in [(FedPer, True, "global model"), (FedAvg, False, "common test")]:
        with pytest.warns(UserWarning, match=parts(f"tested ~ {lacks} ~ test_protocol")):
            fit(method(mlp(), optimizer=SGD), emptied("test", "val", pooled=pooled), 1)


@pytest.mark.filterwarnings("error:no model is tested")
def test_validation_samples_or_a_common_test_set_are_tests_too():
    fit(FedAvg(mlp(), optimizer=SGD), emptied("test", "val"), 1)
    fit(FedPer(mlp(), optimizer=SGD), emptied("test"), 1)


@pytest.mark.parametrize("method", [FedAvg, PFedVEM])
def test_with_local_statistics_no_global_model_is_tested_and_the_header_says_so(method):
    """The server's weights have nobody's statistics."""
    local, average = (
        fit(build(method, normed(), optimizer=SGD, buffers=buffers), blobs(), 1)
        for buffers in ("local", "average")
    )
    assert not any(name in local.history[-1] for name in GLOBAL)
    assert all(name in average.history[-1] for name in GLOBAL)
    assert local.header["buffers"] == "local, so no global model is tested"
    assert average.header["buffers"] == "average"


def test_without_batch_norms_local_statistics_are_none():
    run = fit(FedAvg(mlp(), optimizer=SGD, buffers="local"), blobs(), 1)
    assert all(name in run.history[-1] for name in GLOBAL)
    assert run.header["buffers"] == "local"


def test_clients_rows_tell_how_many_samples_they_were_tested_on(tmp_path):
    """So that the mean weighted by samples can be computed from them."""
    data = blobs()
    data.splits["test"][1] = tuple(part[:2] for part in data.splits["test"][1])
    run = fit(FedPer(mlp(), optimizer=SGD), data, 1, default_root_dir=str(tmp_path))
    rows = csv_rows(run.folder / "clients.csv")
    sizes = [int(row["test_samples"]) for row in rows]
    assert sizes == [6, 2, 6]
    correct = sum(
        float(row["test/personal/acc"]) * size for row, size in zip(rows, sizes, strict=True)
    )
    assert run.history[-1]["test/personal/acc_weighted"] == pytest.approx(correct / 14)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_double_precision_reaches_losses_and_scores(engine):
    """Single precision would leave each number on its coarser grid."""
    run = fit(FedPer(mlp(), optimizer=SGD), blobs((9, 7, 5)), 1, engine=engine, precision="64-true")
    for name in ("train/local/ce", "test/personal/loss", "test/personal/ece", "test/personal/f1"):
        value = run.history[-1][name]
        assert value != pytest.approx(float(torch.tensor(value, dtype=torch.float32)), rel=1e-12)


def runs(tmp_path, *seeds, **loop):
    """Runs of four rounds in which two of six clients are tested."""
    options = {"evaluate_clients": 2, "default_root_dir": str(tmp_path), **loop}
    return [fit(FedPer(mlp(), optimizer=SGD), blobs((6,) * 6), 4, seed=s, **options) for s in seeds]


def rows_of(run):
    return [(int(row["round"]), int(row["client"])) for row in csv_rows(run.folder / "clients.csv")]


@pytest.mark.parametrize("point", ["post_broadcast", "post_local"])
def test_some_clients_are_tested_and_all_in_the_last_round(tmp_path, point):
    """The same ones in every round, and what they score is what they score among all."""
    (run,) = runs(tmp_path, 1, evaluate_at=[point])
    (whole,) = runs(tmp_path, 1, evaluate_clients=None, evaluate_at=[point])
    chosen = json.loads((run.folder / "environment.json").read_text())["evaluated_clients"]
    assert len(chosen) == 2
    expected = [(number, client) for number in (1, 2, 3) for client in chosen]
    assert rows_of(run) == [*expected, *((4, client) for client in range(6))]
    assert run.fingerprint == whole.fingerprint
    assert run.latest.clients == whole.latest.clients
    # Of the third round, by hand.
    found = [row for row in csv_rows(whole.folder / "clients.csv") if row["round"] == "3"]
    scores = [float(found[client]["test/personal/acc"]) for client in chosen]
    assert run.history[2]["test/personal/acc"] == pytest.approx(sum(scores) / 2)


def crowd(count, folder, ckpt_path=None, rounds=2, **loop):
    """A run of a population from which one client trains a round."""
    options = {"default_root_dir": str(folder), "progress": False, **loop}
    loop = FederatedLoop(rounds, UniformSampler(1 / count), **options)
    return loop.fit(FedAvg(mlp(), optimizer=SGD), blobs((2,) * count), ckpt_path)


def test_of_a_large_population_a_hundred_are_tested_unless_all_are_wanted(tmp_path):
    """And all after the last round; of a thousand clients, all in each round."""
    few, many = (crowd(count, tmp_path / str(count)) for count in (FEW, FEW + 1))
    assert few.tested is None
    assert "tested" not in few.header
    assert Counter(number for number, _ in rows_of(few)) == {1: FEW, 2: FEW}
    assert Counter(number for number, _ in rows_of(many)) == {1: SAMPLE, 2: FEW + 1}
    assert many.header["tested"].startswith("the same 100 of 1,001 clients")
    whole = crowd(FEW + 1, tmp_path / "all", evaluate_clients=None)
    assert Counter(number for number, _ in rows_of(whole)) == {1: FEW + 1, 2: FEW + 1}
    assert whole.fingerprint == many.fingerprint
    assert whole.latest.clients == many.latest.clients


def test_a_resumed_run_of_a_large_population_goes_on_testing_whom_it_tested(tmp_path):
    run = crowd(FEW + 1, tmp_path, evaluate_clients=3)
    longer = crowd(FEW + 1, tmp_path, str(run.folder), rounds=4)
    assert longer.tested == run.tested


def test_more_than_there_are_with_test_data_are_all_of_them(tmp_path):
    data = blobs((6, 6, 6))
    data.splits["test"][1] = tuple(part[:0] for part in data.splits["test"][1])
    run = fit(FedPer(mlp(), optimizer=SGD), data, 1, evaluate_clients=9)
    assert run.tested == [0, 2]


def test_clients_that_the_last_round_alone_tested_are_no_part_of_a_mean_over_rounds(tmp_path):
    """So comparisons pair clients with as many tests on either side."""
    (run,) = runs(tmp_path, 1)
    folder = RunFolder.read(run.folder)
    scores = folder.by_client("test/personal/acc", folder.evaluated())
    assert np.flatnonzero(~np.isnan(scores)).tolist() == run.tested
    assert not np.isnan(folder.by_client("test/personal/acc", folder.evaluated()[-1:])).any()


def test_where_the_personal_model_is_the_global_one_it_is_tested_once(monkeypatch):
    """FedAvg's; FedPer's are clients' own, and it has no global model."""
    asked = []
    test = SequentialEngine.test
    monkeypatch.setattr(
        SequentialEngine,
        "test",
        lambda self, jobs: (asked.extend(job.model for job in jobs), test(self, jobs))[1],
    )
    run = fit(FedAvg(mlp(), optimizer=SGD), blobs(), 1, engine="sequential")
    # Three clients and the common test set.
    assert asked == ["global"] * 4
    row = run.latest.metrics
    assert row["test/personal/acc"] == row["test/global/acc"]
    asked.clear()
    fit(FedPer(mlp(), optimizer=SGD), blobs(), 1, engine="sequential")
    assert asked == ["personal"] * 3


@pytest.mark.parametrize(
    ("every", "first", "rounds"),
    [
        (5, None, [5, 10, 12]),
        # pFedVEM's released code tests after rounds 1, 6, ..., and the last one.
        (5, 1, [1, 6, 11, 12]),
        (1, 11, [11, 12]),
        (5, 20, [12]),
    ],
)
def test_the_first_test_may_come_early_or_late(every, first, rounds):
    module = FedAvg(mlp(), optimizer=SGD)
    run = fit(module, blobs(), 12, evaluate_every=every, evaluate_from=first)
    assert [r["round"] for r in run.history if "test/personal/acc" in r] == rounds
