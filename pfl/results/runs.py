"""Reading a run folder: its settings and its results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from pfl.disk.reading import read_yaml
from pfl.results import names
from pfl.results.files import Floats, RunError, check_form, known, numbers, read_cells, read_json

Replicate: TypeAlias = tuple[int, int]
# The same words as in pfl.federation.summary.KINDS.
At: TypeAlias = Literal["last", "mean_last10", "best_by_val", "best_on_test"]

# See check_form.
_ENVIRONMENT: Mapping[str, Any] = {
    **{"header": dict[str, str], "seed": int, "rounds": int, "noise": str},
    **{"packages": dict[str, str], "reports": dict[str, str], "scores": dict[str, bool]},
    **{"evaluated_clients": list[int], "sources": dict[str, str]},
    **{"plugins": dict[str, str], "method": dict[str, str]},
}
_PARTITION: Mapping[str, Any] = {
    **{"data": str, "hash": str, "split_seed": int, "num_clients": int},
    **{"clients": list[dict[str, Any]], "label_counts": list[list[float]], "names": list[str]},
}
_SUMMARY = {"rounds": int, "fingerprint": str, "summary": dict[str, float]}
# Columns of metrics.csv that are summed, and the largest value that they may have.
_COUNTS, _LARGEST = ("comm/", "time/", "train/samples", "train/steps"), 1e18
# Of a partition that does not state the number of clients.
_CLIENTS = 100_000


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The content of a run folder.

    Attributes:
        path: The folder.
        config: The resolved configuration; empty for a run that was started from Python.
        environment: Versions, CPU and threads, the run's header, and captions of columns of
            ``clients.csv``.
        summary: The summary; empty until the run is finished.
        metrics: One row for each round, by its number; missing and undefined cells are NaN.
        filled: Whether a cell of ``metrics`` is present; its value may be NaN.
        partition: Settings of the partition, each client's samples and label counts, and its hash.
    """

    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: pd.DataFrame
    filled: pd.DataFrame
    partition: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Read a folder.

        Raises:
            RunError: The folder is not a run folder, has no finished round, or is damaged.
        """
        path = Path(path)
        if path.is_file():
            raise RunError(f"{path} is a file: give the folder of its runs")
        if not path.is_dir():
            raise RunError(f"there is no folder {path}")
        # Commands print the name, and a terminal would interpret control characters.
        if not str(path).isprintable():
            raise RunError(f"rename {str(path)!r}: its name has control characters")
        if not (path / "environment.json").is_file():
            below = [str(file.parent) for file in sorted(path.glob("**/environment.json"))]
            hint = f"; there are runs below it: {', '.join(below[-3:])}" if below else ""
            raise RunError(f"{path} is not a run folder (it has no environment.json){hint}")
        file = path / "metrics.csv"
        cells = read_cells(file, ("round",))
        metrics = numbers(cells, file)
        if metrics.empty:
            raise RunError(f"the run {path} has not finished any round")
        rounds = pd.Index(metrics["round"], name=None)
        if rounds[0] < 1 or not rounds.is_monotonic_increasing or not rounds.is_unique:
            raise RunError(f"{file}: the rounds must ascend from 1 or more")
        for name in metrics.columns:
            if name.startswith(_COUNTS) and metrics[name].abs().max() > _LARGEST:
                raise RunError(f"{file}: {name} is larger than {_LARGEST:g}")
        run = cls(
            path,
            config=read_yaml(path / "config.yaml"),
            environment=read_json(path / "environment.json", _ENVIRONMENT),
            summary=read_json(path / "summary.json", _SUMMARY),
            metrics=metrics.set_index(rounds),
            filled=(cells != "").set_index(rounds),
            partition=read_json(path / "partition.json", _PARTITION),
        )
        run._check()
        return run

    def _check(self) -> None:
        """Check that the files are consistent.

        Raises:
            RunError: They are not.
        """
        check_form(self.config, {"seed": int}, self.path / "config.yaml")
        if "method" not in (self.environment.get("header") or {}):
            raise RunError(f"{self.path / 'environment.json'} lacks header.method")
        if not self.environment.get("scores"):
            raise RunError(f"{self.path / 'environment.json'} lacks scores")
        file, known = self.path / "partition.json", self.partition.get("num_clients")
        for key in ("clients", "label_counts", "names"):
            entries = self.partition.get(key)
            if None not in (known, entries) and len(entries or ()) != known:
                raise RunError(
                    f"{file}: {key} has {len(entries or ())} entries for {known} clients"
                )
        if len({len(counts) for counts in self.partition.get("label_counts") or ()}) > 1:
            raise RunError(f"{file}: label_counts must have one number for each class")

    @property
    def method(self) -> str:
        """Return the name of the method's class."""
        return str(self.environment["header"]["method"])

    @property
    def seed(self) -> int | None:
        """Return the seed of the run, if the run recorded it."""
        seed = self.environment.get("seed", self.config.get("seed"))
        return None if seed is None else int(seed)

    @property
    def replicate(self) -> Replicate:
        """Return seed and split seed; -1 if unknown."""
        seed, split_seed = self.seed, self.partition.get("split_seed")
        return -1 if seed is None else seed, -1 if split_seed is None else int(split_seed)

    @property
    def split_hash(self) -> str:
        """Return the partition's hash; it is equal if every client has the same samples."""
        return str(self.partition.get("hash", self.path.resolve()))

    @property
    def round(self) -> int:
        """Return the number of finished rounds."""
        return int(self.metrics.index[-1])

    @property
    def finished(self) -> bool:
        """Return ``True`` if the run has ended, after its planned rounds or by a callback."""
        return self.round in (self.environment.get("rounds"), self.summary.get("rounds"))

    def column(self, name: str) -> Floats:
        """Return (rounds,) values of a column of :attr:`metrics`.

        Raises:
            RunError: There is no such column.
        """
        known([name], self.metrics, self.path / "metrics.csv")
        return self.metrics[name].to_numpy()

    def history(self) -> list[dict[str, float]]:
        """Return each round's row of :attr:`metrics` without its missing cells."""
        rows = zip(self.metrics.to_dict("records"), self.filled.to_numpy(), strict=True)
        return [
            {
                str(name): value
                for (name, value), there in zip(row.items(), cells, strict=True)
                if there
            }
            for row, cells in rows
        ]

    @cached_property
    def _client_cells(self) -> pd.DataFrame:
        return read_cells(self.path / "clients.csv", ("round", "client"))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Return ``clients.csv``: one row for each tested client and evaluated round.

        Its index has round and client. Rows of a round that a killed process did not finish are
        left out.

        Raises:
            RunError: The file is damaged, or names a client that the partition lacks.
        """
        file = self.path / "clients.csv"
        table = numbers(self._client_cells, file)
        table = table[table["round"] <= self.round]
        clients, counts = table["client"], self.partition.get("label_counts") or ()
        count = self.partition.get("num_clients") or len(counts) or _CLIENTS
        if len(wrong := clients[(clients < 0) | (clients >= count)]):
            raise RunError(f"{file}: there is no client {wrong.iloc[0]}, there are {count:,}")
        rows = table.set_index(["round", "client"])
        if len(twice := rows.index[rows.index.duplicated()]):
            number, client = twice[0]
            raise RunError(f"{file}: client {client} has two rows of round {number}")
        return rows

    @cached_property
    def bytes(self) -> Floats:
        """Return (rounds,) bytes moved both ways up to the end of each round."""
        return self.column("comm/bytes_total")

    @cached_property
    def seconds(self) -> Floats:
        """Return (rounds,) seconds of training and aggregation up to the end of each round."""
        return np.cumsum(self.column("time/train") + self.column("time/aggregate"))

    @property
    def simulated(self) -> Floats | None:
        """Return (rounds,) simulated seconds up to the end of each round, if clients have costs."""
        name = "comm/seconds_total"
        return self.column(name) if name in self.metrics else None

    @cached_property
    def samples(self) -> pd.Series[float]:
        """Return the number of training samples of each client."""
        return self.by_client("samples", self.evaluated()[-1:])

    @property
    def scores(self) -> Mapping[str, bool]:
        """Return the names of the run's scores, the main one first; ``True`` if more is better."""
        scores: Mapping[str, bool] = self.environment["scores"]
        return scores

    @property
    def main(self) -> str:
        """Return the name of the main score."""
        return next(iter(self.scores))

    @property
    def reported(self) -> dict[str, str]:
        """Return the caption of each column of :attr:`clients` that the server reported."""
        captions = self.environment.get("reports", {})
        return {name: captions[name] for name in self.clients.columns if name in captions}

    @property
    def client_names(self) -> Sequence[str]:
        """Return (N,) names of the clients: their numbers if they have no names."""
        names: Sequence[str] = self.partition.get("names") or ()
        return names or [str(client) for client in range(len(self.samples))]

    @property
    def label_counts(self) -> Floats | None:
        """Return (N, C) numbers of training samples of each client and class, if recorded."""
        counts = self.partition.get("label_counts")
        return None if counts is None else np.array(counts, np.float64)

    def tested_at(self, metric: str) -> str | None:
        """Return the point at which a metric's models were tested.

        It is ``None`` for models that are not personal, or if the run did not record it.
        """
        points = str(self.environment["header"].get("evaluated", "")).split(", ")
        return names.point(metric, points[0]) or None

    def evaluated(self, metric: str | None = None) -> pd.Index[int]:
        """Return the rounds after which a metric has a value, which may be NaN, ascending.

        ``None`` stands for any test score.

        Raises:
            RunError: There is no such metric, or it has no value.
        """
        columns = [name for name in self.metrics.columns if name.startswith("test/")]
        if metric is not None:
            columns = [metric.removesuffix(names.SMALLEST)]
            known(columns, self.metrics, self.path / "metrics.csv")
        rounds = self.metrics.index[self.filled[columns].any(axis=1)]
        if len(rounds) == 0:
            lacks = "was never tested" if metric is None else f"has no value of {metric}"
            raise RunError(f"the run {self.path} {lacks}")
        return rounds

    def chosen(self, at: At, metric: str) -> pd.Index[int]:
        """Return the rounds that a kind of summary uses; see :mod:`pfl.federation.summary`.

        Raises:
            RunError: ``best_by_val`` is asked for, but the run has no validation data; or
                ``best_on_test`` for a metric other than the main score.
        """
        rounds = self.evaluated(metric)
        name, more = next(iter(self.scores.items()))
        if at == "best_on_test" and not names.is_score(metric, name):
            raise RunError(f"best_on_test exists for {name} only, not for {metric}")
        if at == "last":
            return rounds[-1:]
        if at == "mean_last10":
            return rounds[rounds > rounds[-1] - 10]
        by = f"val/personal/{name}" if at == "best_by_val" else metric
        if by.removesuffix(names.SMALLEST) not in self.metrics:
            raise RunError(f"the run {self.path} has no validation data to choose a round by")
        rounds = self.evaluated(by)
        values = self.values(by, rounds)
        if np.isnan(values).all():
            raise RunError(f"the run {self.path} has no round in which {by} is a number")
        return rounds[[int(np.nanargmax(values) if more else np.nanargmin(values))]]

    def values(self, metric: str, rounds: Iterable[int]) -> Floats:
        """Return (len(rounds),) values of a metric after some rounds."""
        if metric.endswith(names.SMALLEST):
            return self._of_smallest(names.of_client(metric), [*rounds])
        known([metric], self.metrics, self.path / "metrics.csv")
        return self.metrics.loc[[*rounds], metric].to_numpy()

    def mean(self, metric: str, rounds: Iterable[int]) -> float:
        """Return a metric's mean over rounds."""
        return float(self.values(metric, rounds).mean())

    def _of_smallest(self, column: str, rounds: Sequence[int]) -> Floats:
        """Return the mean over the tenth of tested clients with the fewest training samples."""
        values = self.over_rounds(column, rounds)
        cells = self._client_cells
        rows = numbers(cells.loc[cells[column] != "", ["round", "client"]], self.path)
        tested = np.unique(rows.loc[rows["round"].isin(rounds), "client"])
        order = self.samples[tested].sort_values(kind="stable").index
        means: Floats = values[order[: math.ceil(len(order) / 10)]].to_numpy().mean(1)
        return means

    def by_client(self, column: str, rounds: Sequence[int] | pd.Index[int]) -> pd.Series[float]:
        """Return each client's mean over rounds; NaN for a client without values.

        For several rounds, clients that were tested only in the last one are left out.
        """
        scores = self.over_rounds(column, rounds)
        tested = self.environment.get("evaluated_clients")
        if tested is not None and len(rounds) > 1:
            scores.loc[:, ~scores.columns.isin(tested)] = np.nan
        return scores.mean()

    def over_rounds(self, column: str, rounds: Iterable[int]) -> pd.DataFrame:
        """Return (rounds, clients) values of a column of :attr:`clients`; NaN if there is none."""
        known([column], self.clients, self.path / "clients.csv")
        found = self.clients[column].unstack("client")
        # If only some clients were tested, those with the highest numbers may be missing.
        tested = self.clients.index.unique("client")
        count = max(int(tested.max()) + 1, self.partition.get("num_clients") or 0)
        return found.reindex(index=[*rounds], columns=range(count))
