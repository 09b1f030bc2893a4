"""Bins of confidence, counted over the models of a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from pfl.core.task import MultiLabel, Regression
from pfl.extras.diagrams import reliability
from pfl.extras.diagrams.pictures import reliability as diagram
from pfl.extras.diagrams.reliability import bins
from pfl.federation.checkpoint import CheckpointError
from pfl.loop import FederatedLoop
from pfl.results.files import RunError, read_table
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.testing.federation import fit
from tests.helpers.messages import parts
from tests.helpers.toy import blobs, mlp
from tests.results.conftest import SGD


def test_bins_by_hand():
    """Borders are fifteenths: 0.41 and 0.45 lie in bin 6, from 0.4 on; 1.0 in the last."""
    found = bins(np.array([0.45, 0.41, 1.0, 0.05]), np.array([True, False, True, True]))
    assert found == [
        {"bin": 0, "samples": 1, "confidence": 0.05, "accuracy": 1},
        {"bin": 6, "samples": 2, "confidence": pytest.approx(0.43), "accuracy": 0.5},
        {"bin": 14, "samples": 1, "confidence": 1, "accuracy": 1},
    ]


@pytest.mark.parametrize("kind", [FedAS, FedAvg])
def test_bins_give_the_calibration_error_that_the_run_recorded(real, kind):
    """It is the mean over samples of |accuracy - confidence| of their bins."""
    run = real[kind.__name__]
    loop = FederatedLoop(
        rounds=3, seed=3, progress=False, default_root_dir=str(run.folder.parent.parent)
    )
    module = kind(mlp(seed=9), optimizer=SGD)
    path = loop.tabulate(reliability, module, blobs(), str(run.folder))
    assert path == run.folder / "reliability.csv"
    table, folder = read_table(path), RunFolder.read(run.folder)
    recorded = folder.by_client("test/personal/ece", folder.evaluated()[-1:])
    for client, expected in enumerate(recorded):
        own = table["client"] == client
        samples, sure, right = (table[n][own] for n in ("samples", "confidence", "accuracy"))
        assert samples.sum() == 6
        assert samples @ np.abs(right - sure) / 6 == pytest.approx(expected, abs=1e-6)
    path.unlink()


def test_a_diagram_by_hand(real):
    """Bin 8 has 1 and 3 samples: (0.54 + 3 * 0.58) / 4 and (1 + 3 * 0) / 4; bin 14 has 4 of 8."""
    run = real["FedAvg"]
    path = run.folder / "reliability.csv"
    bins_of_clients = ["0,8,1,0.54,1", "1,8,3,0.58,0", "1,14,4,0.95,0.5"]
    lines = ["round,client,bin,samples,confidence,accuracy", *(f"3,{b}" for b in bins_of_clients)]
    path.write_text("\n".join(lines) + "\n")
    above, below = diagram(group([RunFolder.read(run.folder)])[0]).axes
    np.testing.assert_allclose(above.lines[1].get_xydata(), [[0.57, 0.25], [0.95, 0.5]])
    np.testing.assert_allclose(below.lines[0].get_ydata(), [0.5, 0.5])
    path.unlink()


def test_a_diagram_of_an_earlier_round_is_not_drawn(real):
    run = real["FedAvg"]
    header = "round,client,bin,samples,confidence,accuracy\n"
    (run.folder / "reliability.csv").write_text(f"{header}2,0,1,6,0.1,0.1\n")
    with pytest.raises(RunError, match=parts("reliability ~ last round ~ --reliability")):
        diagram(group([RunFolder.read(run.folder)])[0])
    (run.folder / "reliability.csv").unlink()


def test_a_checkpoint_that_is_in_no_runs_folder(real, tmp_path):
    loop = FederatedLoop(rounds=3, seed=3, progress=False)
    lone = tmp_path / "x.ckpt"
    lone.write_bytes((real["FedAvg"].folder / "checkpoints" / "last.ckpt").read_bytes())
    with pytest.raises(CheckpointError, match=parts("x.ckpt ~ run folder")):
        loop.tabulate(reliability, FedAvg(mlp()), blobs(), str(lone))


@pytest.mark.parametrize("task", [Regression(), MultiLabel()], ids=["regression", "labels"])
def test_a_task_without_classes_has_no_confidence(task, tmp_path):
    run = fit(FedAvg(mlp(), task=task), blobs(task=task), 1, default_root_dir=str(tmp_path))
    module, data = FedAvg(mlp(), task=task), blobs(task=task)
    with pytest.raises(ValueError, match=parts(f"a task with classes ~ {task}")):
        FederatedLoop().tabulate(reliability, module, data, str(run.folder))
    assert not (run.folder / "reliability.csv").exists()
