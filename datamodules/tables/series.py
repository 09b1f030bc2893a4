"""Time series: windows of past values and the values to predict, from a long table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.doubts.times import none_left
from datamodules.moments import ColumnMoments
from datamodules.partition.partitioner import Partitioner
from datamodules.partition.splits import Division, Holding
from datamodules.record import Record, Times, Windows
from datamodules.tables.data import TableData
from datamodules.tables.gaps import Gaps, why_again
from datamodules.tables.table import Table
from datamodules.targets import Catalogue, Floats, Ints
from pfl.core.forecast import Forecast
from pfl.core.places import Place
from pfl.core.ranges import AtLeastOne
from pfl.core.state import each
from pfl.core.task import Task
from pfl.core.types import Inputs

Calendar: TypeAlias = Literal["all", "business", "rows"]


class TimeSeries(TableData):
    """A table with a row for each client and time, for predicting next values.

    A sample is a window of ``past + horizon`` rows of one client: inputs are the targets and
    features of the first ``past`` rows, (past, F) with the targets first, and the targets are those
    of the other rows, (horizon D,). No window spans a gap, a time step of more than 1.5 times the
    client's usual one. Clients without a window are left out; how many windows are lost, and why,
    is among the doubts.

    Each client trains on its earliest windows and is tested on its latest. Earlier windows that
    overlap with later targets are left out, so that no target of one split is a target of another.

    Args:
        path: A CSV, ARFF or Parquet file, as in :class:`~datamodules.tables.tabular.TabularData`.
        target: The column to predict, or several.
        client_column: The client of each row.
        past: Number of input rows.
        horizon: Number of rows to predict.
        stride: Number of rows between the starts of windows.
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        features: Further input columns.
        standardise: With ``train``, each column is standardised by mean and deviation of the rows
            in all clients' training windows; the task standardises targets likewise, and reports
            scores and predictions in the original units.
        missing: ``refuse`` missing values, or ``drop`` windows with one.
        calendar: The steps of time between rows: ``all``; ``business``, in which Friday is followed
            by Monday; or ``rows``, in which each row of a client is followed by its next.
        options: As in :class:`~datamodules.tables.data.TableData`, without ``test_protocol``, which
            is ``future``. Without a ``time_column``, the rows of a client are assumed to be in
            order and without gaps.

    Raises:
        ValueError: A column or value is missing or unsuitable, or no client has a window.
        OSError: The file cannot be read.
    """

    def __init__(
        self,
        path: Annotated[str, Place()],
        target: str | Sequence[str],
        client_column: str,
        past: AtLeastOne,
        horizon: AtLeastOne = 1,
        stride: AtLeastOne = 1,
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        features: Sequence[str] = (),
        standardise: Literal["none", "train"] = "train",
        missing: Literal["refuse", "drop"] = "refuse",
        calendar: Calendar = "all",
        **options: Any,
    ) -> None:
        super().__init__(
            path,
            target,
            num_clients,
            partition,
            client_column=client_column,
            task="regression",
            test_protocol="future",
            standardise=standardise,
            **options,
        )
        self.past = past
        self.horizon = horizon
        self.stride = stride
        self.features = list(features)
        self.missing = missing
        self.calendar = calendar

    def record(self) -> Record:
        """Return the columns as read, and what windows are lost."""
        windows, table = self._windows, self._table
        found = self.columned(table, self.features, self._times(table))
        found.notes.left_out.extend(windows.left_out)
        samples = f"{len(windows.starts):,} windows of {len(table):,} rows"
        return replace(found, samples=samples, windows=windows.tally)

    def _times(self, table: Table) -> Times | None:
        """Return the times; without a time column those of the first column of dates, if any."""
        clients = table[str(self.client_column)].labels()
        if self.time_column is not None:
            values, kind = table.times(self.time_column)
            return Times(self.time_column, kind, values, clients)
        free = (name for name in table.columns if name not in table.refused)
        for name in free:
            if table[name].kind == "dates" and name not in (*self.target, *self.features):
                return Times(name, "dates", table.times(name)[0], clients, given=False)
        return None

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
        """The task, with the standardisation of its targets."""
        means, deviations = self._scale
        return self.with_loss(Forecast(horizon=self.horizon, means=means, deviations=deviations))

    def divide(self, catalogue: Catalogue) -> tuple[Division, dict[str, Any]]:
        """Divide the windows, leaving out those that overlap with a later split's targets."""
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
        """Return and store (F,) moments of the rows in training windows, each row counted once."""
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
    def _table(self) -> Table:
        table = self.table()
        needed = {*self.target, str(self.client_column)}
        require(
            not needed.isdisjoint(table.columns) or len(table.columns) < 3,
            f"{table.path} has none of the columns {', '.join(sorted(needed))}, only "
            f"{', '.join(table.columns[:20])}: if each client has a column, bring all below each "
            f"other (pandas: melt(id_vars=..., var_name={str(self.client_column)!r}, "
            f"value_name={self.target[0]!r}))",
        )
        return table

    @cached_property
    def _windows(self) -> _Windows:
        everything = self._table
        columns = [*self.target, *self.features]
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} cannot be both target and feature")
        for name in columns if self.missing == "refuse" else ():
            everything.refuse_missing(name, "; missing: drop leaves out windows with one")
        table, clients, times, kind = self._sorted(everything)
        values = np.stack([table.numbers(name) for name in columns], 1)
        gaps = Gaps(clients, times, kind, self.calendar)
        run = np.concatenate([[0], np.cumsum(gaps.breaks)])
        lost = np.concatenate([[0], np.cumsum(np.isnan(values).any(1))])
        length = self.past + self.horizon
        starts = np.arange(max(0, len(table) - length + 1))
        # The first row of a run is the first occurrence of its number.
        place = starts - np.searchsorted(run, run[starts])
        unbroken = (run[starts] == run[starts + length - 1]) & (place % self.stride == 0)
        whole = unbroken & (lost[starts + length] == lost[starts])
        empty = starts[unbroken & ~whole]
        left = [(f"{len(empty):,} windows", "a value is missing")] if len(empty) else []
        starts = starts[whole]
        tally = gaps.tally(starts, empty, length, values, columns)
        require(len(starts) > 0, none_left(str(table.path), tally))
        return _Windows(values, clients, times, starts, tally, left)

    def _sorted(self, table: Table) -> tuple[Table, NDArray[Any], Floats, str]:
        """Return the rows by client and time, their (n,) clients and times, and the times' kind."""
        client, kind = str(self.client_column), ""
        table.refuse_missing(client)
        clients = table[client].labels()
        rows = pd.DataFrame({"client": clients})
        if self.time_column is None:
            rows["time"] = rows.groupby("client").cumcount().astype(float)
        else:
            table.refuse_missing(self.time_column)
            rows["time"], kind = table.times(self.time_column)
        rows = rows.sort_values(["client", "time"], kind="stable")
        if self.time_column is not None and rows.duplicated().any():
            again = np.sort(rows.index[rows.duplicated()].to_numpy())
            times = rows["time"].sort_index().to_numpy()[again]
            copied = bool(table.frame.iloc[again].isin(table.frame).all(axis=None)) and bool(
                table.frame.duplicated().iloc[again].all()
            )
            why = why_again(times, kind, copied)
            table.refuse(self.time_column, again, f"stands in two rows of its client: {why}")
        order = rows.index.to_numpy()
        return table.take(order), clients[order], rows["time"].to_numpy(), kind


class _Windows(NamedTuple):
    """A long table sorted by clients and times, and the starts of its windows.

    Attributes:
        values: (rows, F) numbers, targets first.
        clients: (rows,) clients.
        times: (rows,) times.
        starts: (n,) first row of each window.
        tally: How many windows are lost, and why.
        left_out: Windows that are left out, and why.
    """

    values: Floats
    clients: Any
    times: Floats
    starts: Ints
    tally: Windows
    left_out: Sequence[tuple[str, str]]
