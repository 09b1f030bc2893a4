"""A run's folder, read back: what it was asked to do, what it measured."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import yaml
from numpy.typing import NDArray

from pfl.results import names

Floats: TypeAlias = NDArray[np.float64]
Replicate: TypeAlias = tuple[int, int]
# As pfl.results.summary.KINDS has them.
At: TypeAlias = Literal["last", "mean_last10", "best_by_val", "best_on_test"]

METRIC = "test/personal/acc"
# Columns of clients.csv that are the loop's; others without a slash are what the server reported.
_OF_LOOP = ("round", "client", "samples", "group", "trained", "uploaded")


class RunError(ValueError):
    """A folder that is no run, or a run that lacks what is asked of it."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of numbers; what a row leaves out is NaN.

    Attributes:
        columns: (rows,) each.
        source: The file, for errors.
    """

    columns: Mapping[str, Floats]
    source: str

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a CSV file; one that is missing has no columns.

        Raises:
            RunError: A cell is neither a number nor true nor false.
        """
        if not path.is_file():
            return cls({}, str(path))
        with path.open(newline="") as file:
            header, *rows = list(csv.reader(file)) or [[]]
        try:
            cells = [[_number(cell) for cell in row] for row in rows]
            values = np.array(cells, np.float64).reshape(len(rows), len(header))
        except ValueError as error:
            raise RunError(f"{path}: this is no table of numbers ({error})") from error
        return cls(dict(zip(header, values.T, strict=True)), str(path))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self) -> Iterator[dict[str, float]]:
        """Each row, without what it leaves out."""
        for row in zip(*self.columns.values(), strict=True):
            pairs = zip(self.columns, map(float, row), strict=True)
            yield {name: value for name, value in pairs if not math.isnan(value)}

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Floats:
        """One column.

        Raises:
            RunError: There is none of that name.
        """
        if name not in self.columns:
            known = [key for key in self.columns if "/" in key]
            near = get_close_matches(name, known, n=3) or known
            raise RunError(f"{self.source} has no column {name!r}; it has {', '.join(near)}")
        return self.columns[name]


def _number(cell: str) -> float:
    if cell in ("", "True", "False"):
        return float("nan") if cell == "" else float(cell == "True")
    return float(cell)


@dataclass(frozen=True, eq=False)
class RunFolder:
    """One run's folder.

    Attributes:
        path: The folder.
        config: The resolved configuration; empty for a run that was started from Python.
        environment: What the numbers may depend on besides, the run's header, and what columns of
            ``clients.csv`` mean.
        summary: What was written at the end; empty until then.
        metrics: A row a round.
        partition: Recipe, samples and label counts of each client, and the hash.
    """

    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: Table
    partition: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Read a folder.

        Raises:
            RunError: It is not a run's, has no finished round, or is damaged.
        """
        path = Path(path)
        if not path.is_dir():
            raise RunError(f"there is no folder {path}")
        if not (path / "environment.json").is_file():
            below = [str(file.parent) for file in sorted(path.glob("**/environment.json"))]
            hint = f"; there are runs below it: {', '.join(below[-3:])}" if below else ""
            raise RunError(f"{path} is not a run's folder (it has no environment.json){hint}")
        metrics = Table.read(path / "metrics.csv")
        if len(metrics) == 0:
            raise RunError(f"the run {path} has not finished any round")
        return cls(
            path,
            config=_yaml(path / "config.yaml"),
            environment=_json(path / "environment.json"),
            summary=_json(path / "summary.json"),
            metrics=metrics,
            partition=_json(path / "partition.json"),
        )

    @property
    def method(self) -> str:
        """The method's class."""
        return str(self.environment["header"]["method"])

    @property
    def data(self) -> str | None:
        """The data set's class, as far as the run tells."""
        name = self.partition.get("data")
        return None if name is None else str(name)

    @property
    def seed(self) -> int | None:
        """From which the run drew everything."""
        seed = self.environment.get("seed", self.config.get("seed"))
        return None if seed is None else int(seed)

    @property
    def replicate(self) -> Replicate:
        """Seed and split seed; -1 where one is not known."""
        seed, split_seed = self.seed, self.partition.get("split_seed")
        return -1 if seed is None else seed, -1 if split_seed is None else int(split_seed)

    @property
    def split_hash(self) -> str:
        """Equal for runs in which every client holds the same samples."""
        return str(self.partition.get("hash", self.path.resolve()))

    @property
    def round(self) -> int:
        """Finished rounds."""
        return int(self.metrics["round"][-1])

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: the planned one, or an earlier one by a callback."""
        return self.round in (self.environment.get("rounds"), self.summary.get("rounds"))

    @cached_property
    def clients(self) -> Table:
        """A row a client for each evaluated round."""
        return Table.read(self.path / "clients.csv")

    @cached_property
    def bytes(self) -> Floats:
        """(rounds,) bytes moved up to the end of each round, both ways."""
        return self.metrics["comm/bytes_total"]

    @cached_property
    def seconds(self) -> Floats:
        """(rounds,) seconds of training and aggregation up to the end of each; tests left out."""
        return np.cumsum(self.metrics["time/train"] + self.metrics["time/aggregate"])

    @cached_property
    def samples(self) -> Floats:
        """(N,) training samples of each client."""
        return self.by_client("samples", self.evaluated()[-1:])

    @property
    def reported(self) -> dict[str, str]:
        """Caption of each column of :attr:`clients` that the server reported.

        A run that does not tell, as an earlier version wrote it, has the columns' own names.
        """
        captions = self.environment.get("reports", {})
        columns = [name for name in self.clients.columns if "/" not in name]
        return {name: captions.get(name, name) for name in columns if name not in _OF_LOOP}

    @property
    def label_counts(self) -> Floats | None:
        """(N, C) training samples of each client and class, where the run recorded them."""
        counts = self.partition.get("label_counts")
        return None if counts is None else np.array(counts, np.float64)

    def evaluated(self, metric: str = METRIC) -> Floats:
        """The rounds after which there is a value of a metric, ascending.

        Raises:
            RunError: There is no such metric, or no such round.
        """
        rounds: Floats = self.metrics["round"][~np.isnan(self.metrics[metric])]
        if len(rounds) == 0:
            raise RunError(f"the run {self.path} has no round with a value of {metric}")
        return rounds

    def chosen(self, at: At, metric: str = METRIC) -> Floats:
        """Return the rounds that a kind of report is about; see :mod:`pfl.results.summary`.

        Raises:
            RunError: Nothing was validated, and the best round by validation is asked for; or the
                best round on the test data by anything but an accuracy.
        """
        rounds = self.evaluated(metric)
        if at == "best_on_test" and not names.is_accuracy(metric):
            raise RunError(f"the best round on the test data is that of an accuracy, not {metric}")
        if at == "last":
            return rounds[-1:]
        if at == "mean_last10":
            recent: Floats = rounds[rounds > rounds[-1] - 10]
            return recent
        by = "val/personal/acc" if at == "best_by_val" else metric
        if by not in self.metrics:
            raise RunError(f"the run {self.path} has no validation data to choose a round by")
        rounds = self.evaluated(by)
        best: Floats = rounds[[int(np.argmax(self.values(by, rounds)))]]
        return best

    def values(self, metric: str, rounds: Floats) -> Floats:
        """(len(rounds),) a metric after these rounds."""
        return self.metrics[metric][np.isin(self.metrics["round"], rounds)]

    def score(self, metric: str, rounds: Floats) -> float:
        """A metric's mean over rounds."""
        return float(self.values(metric, rounds).mean())

    def by_client(self, column: str, rounds: Floats) -> Floats:
        """(N,) each client's mean over rounds; NaN for a client without values."""
        return np.array([mean_present(values) for values in self.over_rounds(column, rounds).T])

    def over_rounds(self, column: str, rounds: Floats) -> Floats:
        """(len(rounds), N) each client's values; NaN where there is none."""
        table = self.clients
        client = table["client"].astype(np.int64)
        found = np.full((len(rounds), int(client.max()) + 1), np.nan)
        row = np.isin(table["round"], rounds)
        found[np.searchsorted(rounds, table["round"][row]), client[row]] = table[column][row]
        return found


def mean_present(values: Floats) -> float:
    """The mean of what is not NaN; NaN if nothing is."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else float("nan")


def find(paths: Sequence[str | Path]) -> list[RunFolder]:
    """The runs that paths name: a run's folder, or a folder of runs, which stands for all in it.

    Raises:
        RunError: A path names no run; or one of those that it names is damaged.
    """
    runs: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        folders = [path]
        if path.is_dir() and not (path / "environment.json").is_file():
            folders = sorted(file.parent for file in path.glob("*/environment.json")) or folders
        for folder in folders:
            if folder.resolve() not in runs:
                runs[folder.resolve()] = RunFolder.read(folder)
    return list(runs.values())


def _yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from error
