"""A folder of its own with a small federation's configuration, and sweep files about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pfl.__main__ import main

CONFIG = """\
seed: 1
loop:
  rounds: 2
  progress: false
model:
  class_path: FedPer
  init_args:
    net: {class_path: MLP, init_args: {hidden: 7}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05}}
    epochs: 1
    personal_layers: 1
data:
  class_path: Synthetic
  init_args: {num_clients: 3, samples: 200, partition: {class_path: IID}, batch_size: 16}
"""
LR = "model.init_args.optimizer.init_args.lr"
HIDDEN = "model.init_args.net.init_args.hidden"
COMMAND = ["${env}", "pfl", "fit", "--config", "c.yaml", "--config", "${args_json_file}"]
METRIC = {"name": "test/personal/acc", "goal": "maximize"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(own_folder, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    Path("c.yaml").write_text(CONFIG)


def write(parameters=None, file="s.yaml", **keys):
    """Write a sweep file, a grid of two rates if nothing else is said; ``None`` omits a key."""
    content = {
        "method": "grid",
        "metric": METRIC,
        "parameters": parameters or {LR: {"values": [0.1, 0.2]}},
        "command": COMMAND,
        **keys,
    }
    content = {key: value for key, value in content.items() if value is not None}
    Path(file).write_text(yaml.safe_dump(content, sort_keys=False))
    return Path(file)


def sweep(*words, file="s.yaml"):
    """Run ``pfl sweep``; its exit code."""
    return main(["sweep", file, *words])
