"""Runs on the disk: what two of them must have in common, and the files of one."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import torch

from pfl.federation import checkpoint

CHECKPOINT = Path("checkpoints", "last.ckpt")
# Names of files that are being written.
SCRATCH = r"\..+\.\d+"


def runs(folder: Path) -> list[Path]:
    """Return the folders of all runs below a folder."""
    return sorted(file.parent for file in folder.rglob("environment.json"))


def finished(folder: Path) -> dict[str, Path]:
    """Return the finished runs below a folder, by their fingerprints."""
    found = {}
    for run in runs(folder):
        if (run / "summary.json").exists():
            found[json.loads((run / "summary.json").read_text())["fingerprint"]] = run
    return found


def compare(found: Path, whole: Path):
    """Hold the runs below a folder to those below another, bit by bit, times left out."""
    ended, wanted = finished(found), finished(whole)
    assert sorted(ended) == sorted(wanted), "other fingerprints"
    for mark, run in ended.items():
        for name in ("metrics.csv", "clients.csv"):
            assert table(run / name) == table(wanted[mark] / name), name
        assert _plain(content(run)) == _plain(content(wanted[mark])), "other checkpoints"
    left = [path for path in found.rglob(".*") if re.fullmatch(SCRATCH, path.name)]
    in_runs = [path for path in left if path.parent in ended.values()]
    assert not in_runs, "files of a killed process are left"


def agree(run: Path):
    """Hold all files of an interrupted run to one last round."""
    if not (run / CHECKPOINT).exists():
        return
    known = content(run)
    rounds = list(range(1, known["round"] + 1))
    assert [row["round"] for row in known["history"]] == rounds
    for name, key in (("metrics.csv", None), ("clients.csv", "client")):
        told = sorted({int(row["round"]) for row in table(run / name)})
        evaluated = [row["round"] for row in known["history"] if "test/personal/acc" in row]
        assert told == (rounds if key is None else evaluated), name


def content(run: Path) -> dict:
    """Return what a run's checkpoint holds."""
    return checkpoint.load(run / CHECKPOINT)


def table(path: Path) -> list[dict[str, str]]:
    """Return all columns of a table but the times."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            {key: value for key, value in row.items() if not key.startswith("time/")}
            for row in csv.DictReader(file)
        ]


def _plain(value):
    """Make nested values comparable: tensors by type and bytes, without the times of rounds."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.shape, value.contiguous().view(-1).numpy().tobytes()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if not str(k).startswith("time/")}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
