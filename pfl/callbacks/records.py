"""The callback that writes a run's tables and descriptions, in open formats."""

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

from pfl.core.kernels import kernels
from pfl.core.tensor_file import scratch_of
from pfl.core.types import ClientInfo, FederatedData, RoundResult
from pfl.federation.run import Callback

if TYPE_CHECKING:
    from pfl.federation.run import Run


class Records(Callback):
    """Writes the run's configuration, environment, partition, metrics and summary.

    ``metrics.csv`` has one row for each round, ``clients.csv`` one row for each tested client of
    an evaluated round; ``summary.json`` is written at the end. After an interruption, and on a
    resume, both tables hold exactly the finished rounds.
    """

    def on_fit_start(self, run: Run) -> None:
        """Write what is known before the first round."""
        folder = _folder(run)
        if run.config is not None:
            _write(folder / "config.yaml", run.config)
        asked = {
            "seed": run.seed,
            "rounds": run.rounds,
            "header": run.header,
            "stacked": run.stacked,
            "noise": run.noise,
        }
        tested = {} if run.tested is None else {"evaluated_clients": list(run.tested)}
        columns = {"reports": dict(run.reports), "scores": dict(run.scores)}
        _write_json(folder / "environment.json", environment() | asked | tested | columns)
        counts = {"label_counts": label_counts(run.data)} if run.data.task.has_classes else {}
        # Not indented, because it lists every sample.
        _write_json(folder / "partition.json", run.data.description() | counts, indent=None)
        _agree(run)

    def on_round_end(self, run: Run, result: RoundResult) -> None:
        """Append this round's rows; the one in ``metrics.csv`` says that all of them are there."""
        folder = _folder(run)
        append(folder / "clients.csv", result.clients)
        append(folder / "metrics.csv", [result.metrics])

    def on_interrupt(self, run: Run) -> None:
        """Bring both tables up to the last finished round, whose rows may be missing."""
        _agree(run)

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
        # The number of threads changes how sums are rounded.
        "op_threads": torch.get_num_threads(),
        **kernels(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def label_counts(data: FederatedData) -> list[list[int]]:
    """Return (N, C) numbers of training samples of each client and class."""
    infos = (ClientInfo.of(data, client) for client in range(data.num_clients))
    return [info.class_counts.tolist() for info in infos]


def _folder(run: Run) -> Path:
    if run.folder is None:
        raise ValueError("records need a folder: give the loop a default_root_dir")
    return run.folder


def _agree(run: Run) -> None:
    """Make both tables hold exactly the rows of the finished rounds."""
    folder = _folder(run)
    if run.history:
        _rewrite(folder / "metrics.csv", _columns(run.history), run.history)
    path, latest = folder / "clients.csv", run.latest
    rows: list[Mapping[str, Any]] = []
    for row in _read(path):
        if int(row["round"]) <= run.round and (latest is None or int(row["round"]) < latest.round):
            rows.append(row)
    rows += [] if latest is None else latest.clients
    if rows or path.exists():
        _rewrite(path, list(dict.fromkeys([*_header(path), *_columns(rows)])), rows)


def _write_json(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    _write(path, json.dumps(content, indent=indent))


def _write(path: Path, text: str) -> None:
    scratch = scratch_of(path)
    scratch.write_text(text)
    scratch.replace(path)


def append(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Append rows to a CSV file; if they have a new column, the file is rewritten."""
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


def drop_after(path: Path, number: int) -> None:
    """Drop the rows after round ``number`` from a table with a column ``round``."""
    if rows := _read(path):
        _rewrite(path, _header(path), [row for row in rows if int(row["round"]) <= number])


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
    lines = path.read_text().splitlines(keepends=True)
    # A process that was killed may have left an incomplete line.
    whole = [line for line in lines if line.endswith("\n")]
    return list(csv.DictReader(whole))


def _rewrite(path: Path, header: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    scratch = scratch_of(path)
    with scratch.open("w", newline="") as file:
        writer = csv.DictWriter(file, header, restval="")
        writer.writeheader()
        writer.writerows(rows)
    scratch.replace(path)
