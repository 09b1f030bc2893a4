"""Runs that an earlier version kept are read, found and resumed, wherever its classes were."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from pfl.federation import checkpoint, identity
from pfl.imports import sources
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


# What comes, changes and goes.


def mine(text):
    """A method of the user's own, as it is in ``mine.py`` by now."""
    Path("mine.py").write_text(
        "from lightning_modules.fedper import FedPer\n"
        "from lightning_modules.nets import SplitNet\n\n\n"
        "class Mine(FedPer):\n"
        f"    def __init__(self, net: SplitNet, {text}, **options):\n"
        "        super().__init__(net, epochs=epochs, **options)\n"
    )
    sys.modules.pop("mine", None)


@pytest.fixture
def ours(monkeypatch):
    """A table about it, whose configuration leaves its epochs out."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    content = yaml.safe_load(Path("c.yaml").read_text())
    content["model"]["class_path"] = "mine.Mine"
    del content["model"]["init_args"]["epochs"]
    Path("c.yaml").write_text(yaml.safe_dump(content))
    write(columns=None, rows={"Mine": None})
    yield
    sys.modules.pop("mine", None)


def test_with_another_source_it_is_not(ours, fits):
    """Of a class of the user's own, whose numbers may be others."""
    for made, text in enumerate(("epochs: int = 1", "epochs: int = 1, extra: int = 3"), 1):
        mine(text)
        assert table() == 0
        assert table() == 0
        assert len(fits) == made


@pytest.mark.long
def test_with_a_new_option_the_run_is_found(ours, fits, monkeypatch):
    """Of a class of the project, of which only the name counts."""
    monkeypatch.setattr(sources, "recorded", lambda paths: {})
    mine("epochs: int = 1")
    assert table() == 0
    mine("epochs: int = 1, extra: int = 3")
    assert table() == 0
    assert len(fits) == 2
    entries = {**identity._CAME_OR_WENT, "mine.Mine.extra": 3}
    monkeypatch.setattr(identity, "_CAME_OR_WENT", entries)
    fits.clear()
    for extra, made in ((3, 0), (4, 1), (3, 1)):
        assert table(f"--model.extra={extra}") == 0
        assert len(fits) == made


def test_with_a_new_default_it_is_not(ours, fits):
    mine("epochs: int = 1")
    assert table() == 0
    mine("epochs: int = 2")
    assert table() == 0
    assert len(fits) == len(finished()) == 2


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
