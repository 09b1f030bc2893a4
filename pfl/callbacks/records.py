"""The run's files, readable without this program."""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pfl.core.types import ClientInfo, FederatedData, RoundResult
from pfl.federation.run import Callback

if TYPE_CHECKING:
    from pfl.federation.run import Run


class Records(Callback):
    """The run's configuration, environment and partition, and two tables.

    ``metrics.csv`` holds a row a round, ``clients.csv`` a row a client for each evaluated round;
    ``summary.json`` closes the run. On a resume, rows after the checkpoint's round are dropped.
    """

    def on_fit_start(self, run: Run) -> None:
        """Write what is known before the first round."""
        folder = _folder(run)
        if run.config is not None:
            (folder / "config.yaml").write_text(run.config)
        asked = {"seed": run.seed, "rounds": run.rounds, "header": run.header}
        columns = {"reports": dict(run.reports)}
        _write_json(folder / "environment.json", environment() | asked | columns)
        counts = {"label_counts": label_counts(run.data)} if run.data.task.has_classes else {}
        # Not indented: it lists every sample.
        _write_json(folder / "partition.json", run.data.description() | counts, indent=None)
        if run.history:
            # Not only cut: the run may have ended between a round and its row.
            _rewrite(folder / "metrics.csv", _columns(run.history), run.history)
        _truncate(folder / "clients.csv", run.round)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Append this round's rows."""
        folder = _folder(run)
        _append(folder / "metrics.csv", [result.metrics])
        _append(folder / "clients.csv", result.clients)

    def on_fit_end(self, run: Run) -> None:
        """Write the summary."""
        content = {"rounds": run.round, "fingerprint": run.fingerprint, "summary": run.summary}
        _write_json(_folder(run) / "summary.json", content)


def environment() -> dict[str, Any]:
    """Describe the environment (versions, CPU, threads) that can change results."""
    packages = ("torch", "torchvision", "lightning", "torchmetrics", "numpy", "pfl-lightning")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        # Sums over several threads round otherwise.
        "op_threads": torch.get_num_threads(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def label_counts(data: FederatedData) -> list[list[int]]:
    """Return (N, C) training samples of each client and class."""
    infos = (ClientInfo.of(data, client) for client in range(data.num_clients))
    return [info.class_counts.tolist() for info in infos]


def _folder(run: Run) -> Path:
    if run.folder is None:
        raise ValueError("records need a folder: give the loop a default_root_dir")
    return run.folder


def _write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(json.dumps(content, indent=indent))
    scratch.replace(path)


def _append(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Append rows; a column that appears for the first time makes the file be written anew."""
    if not rows:
        return
    columns = _columns(rows)
    header = _header(path)
    if set(columns) <= set(header):
        with path.open("a", newline="") as file:
            csv.DictWriter(file, header, restval="").writerows(rows)
        return
    header += [column for column in columns if column not in header]
    _rewrite(path, header, [*_read(path), *rows])


def _truncate(path: Path, last: int) -> None:
    if path.exists():
        rows = [row for row in _read(path) if int(row["round"]) <= last]
        _rewrite(path, _header(path), rows)


def _columns(rows: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _rewrite(path: Path, header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    scratch = path.with_name(f".{path.name}")
    with scratch.open("w", newline="") as file:
        writer = csv.DictWriter(file, header, restval="")
        writer.writeheader()
        writer.writerows(rows)
    scratch.replace(path)
