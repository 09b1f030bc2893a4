"""``pfl validate`` and ``pfl predict``: what a checkpoint's models say of the clients' samples."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pfl.__main__ import main
from tests.helpers.messages import says

CONFIG = """\
loop: {rounds: 1, progress: false}
model:
  class_path: FedPer
  init_args: {net: {class_path: MLP, init_args: {hidden: 5}}, personal_layers: 1}
data:
  class_path: Synthetic
  init_args: {num_clients: 3, samples: 120, partition: {class_path: IID}, val_fraction: 0.2}
"""
RUN = ["--ckpt_path", "last"]


FIT = ["--config", "c.yaml"]
pytestmark = pytest.mark.usefixtures("run")


def last_row():
    (file,) = Path("runs").glob("*/*/metrics.csv")
    with file.open() as stream:
        return [*csv.DictReader(stream)][-1]


def test_validation_scores_are_those_of_the_run(capsys):
    assert main(["validate", "--config", "c.yaml", *RUN]) == 0
    said = capsys.readouterr().out
    assert "test/" not in said
    assert f"{float(last_row()['val/personal/acc']):.4f}" in said


def test_predictions_give_the_score_of_the_run(capsys):
    assert main(["predict", "--config", "c.yaml", *RUN]) == 0
    files = sorted(Path("runs").glob("*/*/predictions/test/client_*.csv"))
    assert [file.stem for file in files] == ["client_0", "client_1", "client_2"]
    scores = []
    for file in files:
        with file.open() as stream:
            rows = [{name: float(v) for name, v in row.items()} for row in csv.DictReader(stream)]
        classes = range(sum(name.startswith("prediction_") for name in rows[0]))
        for row in rows:
            assert sum(row[f"prediction_{c}"] for c in classes) == pytest.approx(1, abs=1e-5)
        right = [
            max(classes, key=lambda c: row[f"prediction_{c}"]) == row["target"] for row in rows
        ]
        scores.append(sum(right) / len(right))
    assert sum(scores) / 3 == pytest.approx(float(last_row()["test/personal/acc"]))
    assert main(["predict", "--config", "c.yaml", *RUN, "--split=val", "--out=there"]) == 0
    assert len([*Path("there").iterdir()]) == 3
    # Predictions of two splits do not mix.
    assert main(["predict", "--config", "c.yaml", *RUN, "--split=val"]) == 0
    (folder,) = Path("runs").glob("*/*/predictions")
    assert sorted(path.name for path in folder.iterdir()) == ["test", "val"]
    # 120 samples, a quarter of which are for testing, and a fifth of the rest for validation.
    counts = {
        split: sum(len(file.read_text().splitlines()) - 1 for file in (folder / split).iterdir())
        for split in ("test", "val")
    }
    assert counts == {"test": 30, "val": 18}


def test_without_validation_data_the_way_to_have_some_is_told(capsys):
    without = ["--config", "c.yaml", "--data.val_fraction=0"]
    assert main(["fit", *without]) == 0
    assert main(["validate", *without, *RUN]) == 2
    assert says(capsys.readouterr().err, "no client ~ validation ~ data.val_fraction")
    assert main(["predict", *without, *RUN, "--split=val"]) == 2
    assert says(capsys.readouterr().err, "no client ~ val data")
