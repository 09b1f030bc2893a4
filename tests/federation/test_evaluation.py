"""What is tested after a round, and what is not."""

from __future__ import annotations

import csv

import pytest
import torch

from lightning_modules.fedavg import FedAvg
from lightning_modules.fedper import FedPer
from lightning_modules.pfedvem import PFedVEM
from tests.helpers.discovery import build
from tests.helpers.federation import SGD, fit
from tests.helpers.toy import blobs, mlp, normed

GLOBAL = ("test/global/acc", "test/pooled/acc")


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
    with (run.folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
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
