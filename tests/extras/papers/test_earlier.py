"""Runs that an earlier version kept are read, found and resumed, wherever its classes were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml

from pfl.federation import checkpoint
from pfl.results.find import find_runs
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from tests.extras.papers.conftest import RUNS, finished, snapshot, table, write

# Two runs of 21 November 2026, version 0.1.0, without their checkpoints.
EARLIER = Path(__file__).parents[2] / "earlier"


@pytest.fixture
def earlier():
    """The runs where a table looks for them, and the table; returns their folders."""
    shutil.copytree(EARLIER / "kept", RUNS)
    for file in ("c.yaml", "t.yaml"):
        shutil.copy(EARLIER / file, file)
    return finished()


def elsewhere(folder):
    """Let a run's configuration name its classes in files where they are no more."""
    file = folder / "config.yaml"
    config = yaml.safe_load(file.read_text())
    config["model"]["class_path"] = "lightning_modules.methods.FedPer"
    config["model"]["init_args"]["net"]["class_path"] = "lightning_modules.parts.toys.MLP"
    file.write_text(yaml.safe_dump(config))


# Reading.


def test_they_are_one_setting(earlier):
    settings, repeated = group(find_runs(earlier))
    assert [[run.seed for run in setting.runs] for setting in settings] == [[0, 1]]
    assert not repeated


def test_a_table_finds_them_and_runs_nothing(earlier, fits, capsys):
    before = snapshot(RUNS)
    assert table("--out", "t.csv") == 0
    assert fits == []
    assert snapshot(RUNS) == before
    scores = [
        RunFolder.read(folder).summary["summary"]["test/personal/acc/last"] for folder in earlier
    ]
    assert f"{50 * sum(scores):.2f} ±" in capsys.readouterr().out


# Going on.


@pytest.fixture
def begun(failing):
    """The folder of a table's only run, which was interrupted after its first round."""
    write(columns=None, rows={"FedPer": None})
    failing(KeyboardInterrupt(), seed=1, number=1)
    assert table() == 130
    failing(None)
    (folder,) = RUNS.glob("*/2*")
    return folder


def test_one_that_was_begun_is_gone_on_with_in_its_own_folder(fits, begun):
    elsewhere(begun)
    fits.clear()
    assert table() == 0
    assert fits == [(1, 2)]
    assert finished() == [begun]


def test_one_that_cannot_be_gone_on_with_is_refused_in_a_sentence(begun, capsys):
    file = begun / "checkpoints" / "last.ckpt"
    content = checkpoint.load(file)
    content["template"]["since.gone"] = torch.zeros(1)
    checkpoint.save(file, content)
    capsys.readouterr()
    assert table() == 2
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "[1] the checkpoint's template has an entry since.gone; this network has none; remove "
        f"{begun} to restart this run."
    ) in said
