"""Time series: windows of the past and the values that follow them, from a long table."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.moments import ColumnMoments
from datamodules.partition.partitioner import Partitioner
from datamodules.partition.splits import Division, Holding
from datamodules.report import Report, of_table
from datamodules.table_targets import columns_of
from datamodules.tables import Spelling, Table, read_table
from datamodules.targets import Catalogue, Floats, Ints
from datamodules.tensors import TensorData, check_clients
from pfl.core.checks import at_least_one
from pfl.core.forecast import Forecast
from pfl.core.state import each
from pfl.core.task import Task
from pfl.core.types import Inputs

# A step of more than this many usual ones is a gap.
_GAP = 1.5


class TimeSeries(TensorData):
    """A table with a row for each client and time, whose next values are predicted.

    A sample is a window of ``past + horizon`` rows of one client: inputs are the targets and
    features of the first ``past`` rows, (past, F) with the targets first, and the targets are those
    of the other rows, (horizon D,). No window spans a gap, that is a step of time of more than 1.5
    times the client's usual one. Clients without a window are left out, with a warning.

    Each client trains on its earliest windows and is tested on its latest. Earlier windows that
    reach into the times to be predicted later are left out, so that no target of one split is a
    target of another.

    Args:
        path: A CSV, ARFF or Parquet file, as in :class:`~datamodules.tabular.TabularData`.
        target: The column to predict, or several.
        client_column: The client of each row.
        past: Number of rows that the network sees.
        horizon: Number of rows that it predicts.
        stride: Rows from the start of a window to that of the next.
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        time_column: Numbers or dates, as in :class:`~datamodules.tabular.TabularData`, in any order
            of rows; without it the rows of a client are in order, and without gaps.
        features: Further input columns.
        standardise: With ``train`` each column is standardised by mean and deviation of the rows in
            all clients' training windows; the task standardises targets in the same way, and its
            scores and predictions are in their units.
        missing: ``refuse`` missing values, or ``drop`` windows with one.
        missing_values: As in :class:`~datamodules.tabular.TabularData`.
        date_format: As there.
        decimal: As there.
        thousands: As there.
        separator: As there.
        options: As in :class:`FederatedDataModule`, without ``test_protocol``, which is ``future``.

    Raises:
        ValueError: A column or value is missing or unsuitable, or no client has a window.
        OSError: The file cannot be read.
    """

    source_argument = "path"

    def __init__(
        self,
        path: str,
        target: str | Sequence[str],
        client_column: str,
        past: int,
        horizon: int = 1,
        stride: int = 1,
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        time_column: str | None = None,
        features: Sequence[str] = (),
        standardise: Literal["none", "train"] = "train",
        missing: Literal["refuse", "drop"] = "refuse",
        missing_values: Sequence[str | float] | None = None,
        date_format: str | None = None,
        decimal: str = ".",
        thousands: str | None = None,
        separator: str = ",",
        **options: Any,
    ) -> None:
        at_least_one(past=past, horizon=horizon, stride=stride)
        check_clients(client_column, partition)
        super().__init__(
            path, num_clients, partition, task="regression", test_protocol="future", **options
        )
        self.path = path
        self.target = columns_of(target)
        self.client_column = client_column
        self.past = past
        self.horizon = horizon
        self.stride = stride
        self.time_column = time_column
        self.features = list(features)
        self.standardise = standardise
        self.missing = missing
        self.spelling = Spelling(missing_values, date_format, decimal, thousands, separator)

    def report(self) -> Report:
        """Describe what the columns were read as."""
        return self._windows.report

    def read(self) -> Mapping[str, Any]:
        """Return all windows as tensors, by name."""
        windows, row = self._windows, self._windows.starts
        targets = windows.values[:, : len(self.target)]
        following = targets[row[:, None] + np.arange(self.past, self.past + self.horizon)]
        return {
            "x": windows.values[row[:, None] + np.arange(self.past)],
            "y": following.reshape(len(row), -1),
            "client": windows.clients[row],
            "column.time": windows.times[row + self.past],
        }

    @property
    def task(self) -> Task:
        """The task, which knows how targets were standardised."""
        means, deviations = self._scale
        return self.with_loss(Forecast(horizon=self.horizon, means=means, deviations=deviations))

    def divide(self, catalogue: Catalogue) -> tuple[Division, dict[str, Any]]:
        """Divide the windows; leave out those that reach into a later split's times."""
        division, how = super().divide(catalogue)
        return replace(division, holdings=tuple(map(self._apart, division.holdings))), how

    def fitted(self, inputs: Inputs, rows: Ints, division: Division) -> Inputs:
        """Return the inputs standardised."""
        if self.standardise == "none":
            return inputs
        _, means, deviations = map(torch.from_numpy, self._of_rows(division))
        return each(lambda value: (value - means) / deviations, inputs)

    def _apart(self, held: Holding) -> Holding:
        starts, times = self._windows.starts, self._windows.times
        first, last = times[starts + self.past], times[starts + self.past + self.horizon - 1]

        def before(ids: Ints, later: Ints) -> Ints:
            return ids[last[ids] < first[later].min()] if len(later) else ids

        val = before(held.val, held.test)
        return Holding(before(held.train, np.concatenate([held.val, held.test])), val, held.test)

    def _of_rows(self, division: Division) -> ColumnMoments:
        """Return (F,) moments of the rows in training windows, each counted once; remember them."""
        if self._learnt is not None:
            return self._learnt.moments_of("x", self._windows.values.shape[1:])
        starts = self._windows.starts[division.of_members("train")]
        seen = np.unique(starts[:, None] + np.arange(self.past + self.horizon))
        require(len(seen) > 0, "no client has a training window")
        counts, means, deviations = ColumnMoments.of(self._windows.values[seen])
        self._moments["x"] = ColumnMoments(counts, means, np.where(deviations > 0, deviations, 1))
        return self._moments["x"]

    @cached_property
    def _scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The (D,) means and deviations of the targets; none if they are not standardised."""
        if self.standardise == "none":
            return (), ()
        _, means, deviations = self._of_rows(self.division)
        count = len(self.target)
        return tuple(means[:count].tolist()), tuple(deviations[:count].tolist())

    @cached_property
    def _windows(self) -> _Windows:
        table = everything = read_table(self.path, spelling=self.spelling)
        columns = [*self.target, *self.features]
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} cannot be both target and feature")
        keys = [self.client_column, *([] if self.time_column is None else [self.time_column])]
        for name in [*keys, *(columns if self.missing == "refuse" else ())]:
            table.refuse(name, np.flatnonzero(table.missing(name)), "is a missing value")
        table, clients, moments, kind = self._sorted(table)
        values = np.stack([table.numbers(name) for name in columns], 1)
        run = np.concatenate([[0], np.cumsum(_breaks(clients, moments))])
        lost = np.concatenate([[0], np.cumsum(np.isnan(values).any(1))])
        length = self.past + self.horizon
        starts = np.arange(max(0, len(table) - length + 1))
        # The first row of a run is where its number is first found.
        place = starts - np.searchsorted(run, run[starts])
        whole = (run[starts] == run[starts + length - 1]) & (place % self.stride == 0)
        starts = starts[whole & (lost[starts + length] == lost[starts])]
        require(
            len(starts) > 0,
            f"{table.path}: no client has {length} rows without a gap (past + horizon)",
        )
        uses = {self.client_column: "client", self.time_column or "": "time"}
        uses |= dict.fromkeys(self.features, "feature") | dict.fromkeys(self.target, "target")
        read = f"{len(starts):,} windows of {len(everything):,} rows"
        report = of_table(everything, uses, times=kind, read=read)
        if len(without := np.setdiff1d(clients, clients[starts])):
            warnings.warn(
                f"{table.path}: {len(without)} of {len(np.unique(clients))} clients have no "
                f"{length} rows without a gap (past + horizon) and are left out, the first is "
                f"{without[0]}",
                stacklevel=2,
            )
        return _Windows(values, clients, moments, starts, report)

    def _sorted(self, table: Table) -> tuple[Table, Any, Floats, str]:
        """Return the rows by client and time, their (n,) clients and times, and the times' kind."""
        clients = table.labels(self.client_column)
        owner = np.unique(clients, return_inverse=True)[1]
        if self.time_column is None:
            order = np.argsort(owner, kind="stable")
            place = np.arange(len(owner)) - np.searchsorted(owner[order], owner[order])
            return table.take(order), clients[order], place.astype(np.float64), ""
        moments, kind = table.times(self.time_column)
        order = np.lexsort((moments, owner))
        table, clients, moments = table.take(order), clients[order], moments[order]
        again = (clients[1:] == clients[:-1]) & (np.diff(moments) == 0)
        table.refuse(
            self.time_column, np.flatnonzero(again) + 1, "stands in two rows of its client"
        )
        return table, clients, moments, kind


def _breaks(clients: NDArray[Any], moments: Floats) -> NDArray[np.bool_]:
    """Return (rows - 1,) marks of the steps to another client, or over a gap."""
    same, step = clients[1:] == clients[:-1], np.diff(moments)
    breaks: NDArray[np.bool_] = ~same
    borders = np.flatnonzero(breaks)
    for first, last in zip([0, *(borders + 1)], [*borders, len(step)], strict=True):
        if first < last:
            own = step[first:last]
            breaks[first:last] = own > _GAP * np.median(own)
    return breaks


class _Windows(NamedTuple):
    """A long table in order of clients and times, and where its windows start.

    Attributes:
        values: (rows, F) numbers, the targets first.
        clients: (rows,) clients.
        times: (rows,) times.
        starts: (n,) first row of each window.
        report: What the columns were read as.
    """

    values: Floats
    clients: Any
    times: Floats
    starts: Ints
    report: Report
