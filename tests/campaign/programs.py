"""Small federations as configurations: every method, all engines, with and without files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.helpers.discovery import methods
from tests.helpers.extras import has

SITES = {"class_path": "LoopbackEngine", "init_args": {"folder": "sites"}}
ENGINES = ("sequential", "threads", "vectorised", "auto", *([SITES] if has("sites") else []))
LR = "model.init_args.optimizer.init_args.lr"


@dataclass(frozen=True)
class Program:
    """A command, and the files that it needs.

    Attributes:
        words: The command.
        again: What is added to it to go on after an interruption.
        files: Contents by name.
    """

    words: tuple[str, ...]
    again: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]

    def write(self, folder: Path):
        """Write the files into a folder, which is made."""
        folder.mkdir(parents=True)
        for name, content in self.files:
            (folder / name).write_bytes(content)


def config(number: int, rounds: int = 4) -> dict:
    """Return a configuration: each method in its turn, other options with each."""
    kinds = methods()
    kind = kinds[number % len(kinds)].__name__
    net = {"class_path": "MLP", "init_args": {"hidden": 8}}
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}}
    if kind != "PerFedAvg":
        optimizer["init_args"]["momentum"] = 0.9
    model = {"net": net, "optimizer": optimizer, "epochs": 1 + number % 2}
    model |= {"supervisor": net} if kind == "FedSimSup" else {}
    model |= {"persist_optimizer": True} if number % 3 == 0 else {}
    loop = {
        "rounds": rounds,
        "name": "r",
        "engine": ENGINES[number % len(ENGINES)],
        "sampler": {"class_path": "UniformSampler", "init_args": {"fraction": 0.7}},
        "checkpoint_every": 1 + number % 3 // 2,
        "evaluate_every": 1 + number % 5 // 4,
        "kept_memory": (None, 0.0, 1e-6)[number % 3],
        "progress": False,
    }
    data = {
        "num_clients": 4,
        "samples": 80,
        "size": 4,
        "batch_size": 8,
        "val_fraction": 0.2,
        "partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.5, "min_samples": 8}},
    }
    return {
        "seed": number,
        "loop": loop,
        "model": {"class_path": kind, "init_args": model},
        "data": {"class_path": "Synthetic", "init_args": data},
    }


def dumped(content: dict) -> bytes:
    """Return a configuration as YAML."""
    return yaml.safe_dump(content, sort_keys=False).encode()


def program(number: int) -> Program:
    """Return a run; every eighth is a table of runs, every eighth a sweep over runs."""
    files = [("c.yaml", dumped(config(number)))]
    if number % 8 == 6:
        return Program(("table", "t.yaml"), (), (*files, ("t.yaml", dumped(table()))))
    if number % 8 == 7:
        return Program(("sweep", "s.yaml"), (), (*files, ("s.yaml", dumped(sweep()))))
    return Program(("fit", "--config", "c.yaml"), ("--ckpt_path", "last"), (*files,))


def table() -> dict:
    """Return a table of two runs."""
    return {
        "caption": "Two rates",
        "metric": "test/personal/acc/last",
        "seeds": [1],
        "config": "c.yaml",
        "reported": False,
        "columns": {"rate": {"set": LR, "values": [0.05, 0.1]}},
        "rows": {"as it is": None},
    }


def sweep() -> dict:
    """Return a sweep over two points."""
    return {
        "method": "grid",
        "metric": {"name": "val/personal/acc", "goal": "maximize"},
        "parameters": {LR: {"values": [0.05, 0.1]}},
        "command": ["${env}", "pfl", "fit", "--config", "c.yaml", "--config", "${args_json_file}"],
    }
