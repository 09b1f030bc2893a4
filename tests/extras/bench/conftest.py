"""A small task in a folder of its own, and one benchmark of it that tests may read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from pfl.__main__ import main
from pfl.campaign import campaign
from pfl.extras.bench import contender
from pfl.extras.bench.bench import Bench
from pfl.extras.bench.pieces import PieceFolder
from pfl.extras.bench.task import read

LR = "model.init_args.optimizer.init_args.lr"
EPOCHS = "model.init_args.epochs"
CONFIG = """\
loop: {rounds: 4, evaluate_every: 2}
model:
  class_path: FedAvg
  init_args:
    net: {class_path: MLP, init_args: {hidden: 3}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05}}
    epochs: 1
data:
  class_path: Synthetic
  init_args:
    {num_clients: 3, samples: 90, partition: {class_path: IID}, batch_size: 8, val_fraction: 0.3}
"""
# Fewer methods than in every real table, so that tests are quick.
FEW = ("FedAvg", "FedAvgP")


def task(folder, **keys):
    """Write a task; ``None`` omits a key, and ``keep`` leaves its configuration as it is."""
    kept = keys.pop("keep", False)
    content = {
        "caption": "Toys",
        "config": "c.yaml",
        "shared": {LR: {"low": 0.01, "high": 1.0, "log": True}, EPOCHS: {"choices": [1, 2]}},
        **keys,
    }
    if not kept:
        (folder / "c.yaml").write_text(CONFIG)
    content = {key: value for key, value in content.items() if value is not None}
    (folder / "toys.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder / "toys.yaml"


def bench(file, out, *methods, trials=2, seeds=2):
    """Return a benchmark."""
    found = contender.contenders(read(file), methods, ())
    return Bench(read(file), found, PieceFolder(out), trials, seeds)


def worked(made):
    """Do all the work of a benchmark; return its leaderboard."""
    assert not campaign.work(made, Console(quiet=True), 1, lambda: made)
    return made.leaderboard()


def run(*words):
    """Run ``pfl bench``; return its exit code."""
    return main(["bench", *map(str, words)])


def rows(out):
    """Return the rows of a leaderboard by method, as its file has them."""
    return {
        row["method"]: row for row in json.loads((out / "leaderboard.json").read_text())["rows"]
    }


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(contender, "ALWAYS", FEW)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return the folder of a finished benchmark: its task, and its outcomes below ``out``."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contender, "ALWAYS", FEW)
        words = [task(folder), "--budget", 2, "--seeds", 2, "--out", folder / "out"]
        assert run(*words) == 0
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    """Return a copy of it, which a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))
