"""The folders of the ledger: each has a finished run, without checkpoints, and its cell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from pfl.disk.reading import FileError
from pfl.results.runs import At, RunFolder


class Entry(BaseModel):
    """One run of one cell, as its ``cell.json`` describes it.

    Attributes:
        paper: The paper.
        table: Name of the table in the paper.
        row: Label of the row.
        column: Label of the column on each axis.
        seed: Seed of the run.
        metric: Name of the number in ``summary.json``, for instance ``test/personal/acc/last``.
        reported: The paper's number as a fraction; ``None`` if it prints none.
        spread: The number after the paper's ±, as a fraction; ``None`` if it prints none.
        partition: Hash of the assignment of samples to clients.
        commit: The project's commit that ran it.
        hardware: Processor and cores.
        note: Differences from the paper's set-up that could not be helped, such as the images.
        released: Whether it has the paper's own numbers of samples by client and class, from its
            released code; otherwise it is a draw of our own from the same law.
        departure: Settings other than the table's, chosen to see what a number depends on; empty
            for a cell of the table.
        ended: When the run ended; runs of before 2026-11-27 were kept without it.
        images: Hash of the JPEG files that it read (:mod:`benchmarks.jpeg`); empty for other data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    paper: str
    table: str
    row: str
    column: dict[str, str]
    seed: int
    metric: str
    reported: FiniteFloat | None
    spread: FiniteFloat | None
    partition: str
    commit: str
    hardware: str
    note: str
    released: bool = False
    departure: str = ""
    ended: str = ""
    images: str = ""

    @property
    def key(self) -> str:
        """Name of the entry's folder."""
        parts = [self.paper, self.table, self.row, *(f"{k} {v}" for k, v in self.column.items())]
        words = [*parts, f"seed {self.seed}", *(["released partition"] if self.released else [])]
        words += [self.departure] if self.departure else []
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words)


def read(folder: Path) -> pd.DataFrame:
    """Return all runs of the ledger, sorted by their cells and seeds.

    Returns:
        The columns of :class:`Entry`, with ``column`` as one text such as ``beta 0.1, P 0.2``; the
        ``folder``; and the run's ``scores``, see :func:`scores`.

    Raises:
        FileError: A folder is damaged, or has the cell of another one.
    """
    records = []
    for path in sorted(folder.glob("[!.]*/")):
        try:
            entry = Entry.model_validate_json((path / "cell.json").read_bytes())
        except FileNotFoundError:
            raise FileError(f"{path} has no cell.json, which says of which cell it is") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "damaged"
            raise FileError(f"{path / 'cell.json'}: {place}: {first['msg']}") from error
        if entry.key != path.name:
            raise FileError(f"{path} has the cell of {entry.key}: rename or remove the folder")
        column = ", ".join(f"{axis} {label}" for axis, label in entry.column.items())
        found = scores(RunFolder.read(path), entry.metric)
        records.append({**entry.model_dump(), "column": column, "folder": path.name, **found})
    if not records:
        raise FileError(f"there is no run in {folder}: add some with --keep TABLE")
    runs = pd.DataFrame(records).astype({"reported": float, "spread": float})
    return runs.sort_values(["paper", "table", "column", "row", "seed"], key=_natural)


def _natural(texts: pd.Series[Any]) -> pd.Series[Any]:
    """Return sort keys by which "J 50" comes before "J 100"."""
    return texts.map(lambda text: re.sub(r"(?<![\d.])\d+", lambda n: n[0].zfill(9), str(text)))


def scores(run: RunFolder, metric: str) -> dict[str, Any]:
    """Return what a finished run's curve says.

    Returns:
        ``scores``: the number by criterion and by what clients are averaged over; an empty text is
        that of ``metric``. Where only some clients were tested before the last round, ``last`` is
        all there is beside it. ``swing``: the standard deviation of the tests in the last half of
        the rounds.

    Raises:
        FileError: The run is not finished, or lacks the number.
    """
    if not run.summary or not run.finished:
        raise FileError(f"{run.path} ends after round {run.round}: the run is not finished")
    ours = run.summary.get("summary", {}).get(metric)
    if ours is None or not np.isfinite(ours):
        where = run.path / "summary.json"
        raise FileError(f"{where}: {metric}: expected a finite number, got {ours}")
    name, _, taken = metric.rpartition("/")
    score = name.removesuffix("_weighted")
    weighted = score if name.startswith("test/pooled/") else f"{score}_weighted"
    columns = {"": name, "clients": score, "samples": weighted}
    some = "evaluated_clients" in run.environment and not name.startswith("test/pooled/")
    rounds: dict[str, At] = {"": cast(At, taken), "last": "last"}
    rounds |= {} if some else {"best": "best_on_test"}
    found = {
        (criterion, averaging): run.mean(column, run.chosen(at, column))
        for criterion, at in rounds.items()
        for averaging, column in columns.items()
    }
    late = run.values(name, [test for test in run.evaluated(name) if test > run.round / 2])
    swing = np.nan if some or len(late) < 3 else float(np.std(late, ddof=1))
    return {"scores": found | {("", ""): float(ours)}, "swing": swing}


def table(file: Path, *columns: str) -> pd.DataFrame:
    """Read some columns of a table that people write; without the file it is empty.

    Raises:
        FileError: It lacks a column, or a cell.
    """
    if not file.is_file():
        return pd.DataFrame(columns=[*columns])
    try:
        found = pd.read_csv(file, usecols=[*columns], keep_default_na=False, na_values=[])
    except ValueError as error:
        raise FileError(f"{file}: {error}") from error
    return found
