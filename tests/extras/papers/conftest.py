"""A folder of its own with a small federation's configuration, and tables about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pfl.__main__ import main
from pfl.campaign import campaign

CONFIG = """\
loop:
  rounds: 2
model:
  class_path: FedPer
  init_args:
    net: {class_path: MLP, init_args: {hidden: 7}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05}}
    epochs: 1
data:
  class_path: Synthetic
  init_args: {num_clients: 3, samples: 200, partition: {class_path: IID}, batch_size: 16}
"""
LR = "model.init_args.optimizer.init_args.lr"
RUNS = Path("runs", "tables")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(own_folder):
    Path("c.yaml").write_text(CONFIG)


def write(file="t.yaml", **keys):
    """Write a table, of two methods and two rates if nothing else is said; ``None`` omits a key."""
    content = {
        "caption": "Toys",
        "metric": "test/personal/acc/last",
        "seeds": [1],
        "config": "c.yaml",
        "reported": False,
        "columns": {"rate": {"set": LR, "values": [0.1, 0.2]}},
        "rows": {"FedPer": None, "FedAvg": {"set": {"model": "FedAvg"}}},
        **keys,
    }
    content = {key: value for key, value in content.items() if value is not None}
    Path(file).write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return Path(file)


def table(*words, file="t.yaml"):
    """Run ``pfl table``; its exit code."""
    return main(["table", file, *words])


def finished(root=RUNS):
    """The folders of all runs that came to their end, the oldest name first."""
    return sorted(file.parent for file in Path(root).glob("*/*/summary.json"))


def snapshot(*folders):
    """Every path below some folders, with its time of change and its size."""
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for folder in folders
        for path in Path(folder).rglob("*")
    }


@pytest.fixture
def fits(monkeypatch):
    """Seed and first round of each run that is made or resumed."""
    calls = []
    start = campaign._Rounds.on_fit_start

    def noting(self, run):
        calls.append((run.seed, run.round + 1))
        start(self, run)

    monkeypatch.setattr(campaign._Rounds, "on_fit_start", noting)
    return calls


@pytest.fixture
def failing(monkeypatch):
    """``failing(error, seed, round)``: a round of the runs with a seed ends in an error.

    A round of 0 is the time before the first one; ``failing(None)`` ends it all.
    """
    plan = {}

    def wrap(name, original):
        def event(self, run, *results):
            original(self, run, *results)
            if (run.seed, run.round) == plan.get("where"):
                raise plan["error"]

        monkeypatch.setattr(campaign._Rounds, name, event)

    for name in ("on_fit_start", "on_round_end"):
        wrap(name, getattr(campaign._Rounds, name))

    def arm(error, seed=None, number=None):
        plan.clear()
        if error is not None:
            plan.update(error=error, where=(seed, number))

    return arm
