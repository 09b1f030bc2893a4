"""Base class of data sets given as tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from datamodules.checks import require
from datamodules.doubts.copies import BELONGS
from datamodules.partition.partitioner import ByDomain, Partitioner
from datamodules.record import Notes, Record, Times, Use, Values
from datamodules.tables.columns import Spelling
from datamodules.tables.sources import read_table
from datamodules.tables.table import Table
from datamodules.tensors import TensorData
from pfl.core.places import Place


class TableData(TensorData):
    """Base class of data sets in a table with columns of targets, clients and times.

    Args:
        path: A CSV file in UTF-8 with a header, an ARFF file (``*.arff``), or a Parquet file
            (``*.parquet``; needs pyarrow).
        target: The column to predict, or several, for regression and multilabel (zeros and ones).
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        client_column: The natural client of each row, for ``ByDomain``.
        time_column: Numbers or dates (ISO 8601, also months, weeks and quarters, or integers such
            as 20260331; UTC if there is no time zone), which become the column ``time``, in
            seconds.
        missing_values: Texts or numbers that mark a missing value, instead of the usual ones (those
            of pandas except None, and ?). An empty cell is always missing.
        date_format: Format of dates in Python's codes, such as ``%d.%m.%Y``.
        decimal: Decimal sign.
        thousands: Thousands separator.
        separator: Separator of columns in a text file.
        options: As in :class:`TensorData`.

    Attributes:
        own_clients: ``True`` for a data set with built-in clients, which other partitions may
            divide.

    Raises:
        ValueError: A target is given twice, or the partition mixes the clients of
            ``client_column``.
    """

    source_argument = "path"
    own_clients: ClassVar[bool] = False

    def __init__(
        self,
        path: Annotated[str, Place()],
        target: str | Sequence[str],
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        client_column: str | None = None,
        time_column: str | None = None,
        missing_values: Sequence[str | float] | None = None,
        date_format: str | None = None,
        decimal: str = ".",
        thousands: str | None = None,
        separator: str = ",",
        **options: Any,
    ) -> None:
        if not self.own_clients:
            _check_clients(client_column, partition)
        super().__init__(path, num_clients, partition, **options)
        self.path = path
        self.target = [target] if isinstance(target, str) else [*target]
        named = ", ".join(self.target)
        require(len({*self.target}) == len(self.target), f"target has a column twice: {named}")
        self.spelling = Spelling(missing_values, date_format, decimal, thousands, separator)
        self.client_column = client_column
        self.time_column = time_column

    @abstractmethod
    def read(self) -> Mapping[str, Any]:
        """Read the tensors by name."""

    def table(self) -> Table:
        """Read the table."""
        return read_table(self.path, spelling=self.spelling, wanted=self.wanted)

    @property
    def wanted(self) -> Collection[str] | None:
        """The columns that are read from a file of more; ``None`` for all."""
        return None

    def places(self, table: Table) -> list[str]:
        """Return the columns of clients and times; a later client's own table may lack the one."""
        single = self._learnt is not None and self.client_column not in table.columns
        given = (None if single else self.client_column, self.time_column)
        return [name for name in given if name is not None]

    def placed(self, table: Table) -> dict[str, Any]:
        """Return the client and the time of each row, in the form of ``TensorData``."""
        found: dict[str, Any] = {}
        for name in self.places(table):
            if name == self.client_column:
                found["client"] = table[name].labels()
            else:
                found["column.time"], _ = table.times(name)
        return found

    def columned(
        self,
        table: Table,
        features: Iterable[str],
        times: Times | None = None,
        listed: Collection[str] = (),
        used: Table | None = None,
    ) -> Record:
        """Return the record of a table.

        Args:
            table: The table, with all of its rows.
            features: The features among its columns.
            times: The time of each row that is in use.
            listed: Columns that are categories because the user says so.
            used: The rows in use; by default all.
        """
        named: tuple[tuple[Use, Iterable[str | None]], ...] = (
            ("client", [self.client_column]),
            ("time", [self.time_column]),
            ("feature", features),
            ("target", self.target),
        )
        uses = {name: use for use, names in named for name in names if name is not None}
        used = table if used is None else used
        dropped = len(table) - len(used)
        kind = times.kind if times is not None and times.given else ""
        columns: list[Values] = []
        for name in table.columns:
            use, as_is = uses.get(name, "none"), self.standardise == "none"
            if name in table.refused:
                columns.append(Values(name, use, "lists", "lists or records"))
            else:
                of_time = kind if use == "time" else ""
                columns.append(table[name].used(use, of_time, name in listed, as_is))
        return Record(
            f"{len(table):,} rows",
            str(self.path),
            Notes(
                left_out=[(f"{dropped:,} rows", "a value is missing")] if dropped else [],
                unread=[*table.unread],
            ),
            columns=tuple(columns),
            lines=table.lines,
            times=times,
            place=used.place,
            identifiers=_owners(used, uses),
        )


def _owners(table: Table, uses: Mapping[str, Use]) -> dict[str, Any]:
    """Return the inputs and unused columns that name what rows belong to, such as patients."""
    names = [name for name in table.columns if BELONGS.match(name)]
    free = [n for n in names if uses.get(n, "feature") == "feature" and n not in table.refused]
    return {name: np.array(table[name].texts)[table[name].codes] for name in free}


def _check_clients(client_column: str | None, partition: Partitioner | str | None) -> None:
    """Reject a partition of the project that mixes the clients of a column."""
    name, home = type(partition).__name__, type(partition).__module__
    mixes = isinstance(partition, Partitioner) and not isinstance(partition, ByDomain)
    require(
        client_column is None or not mixes or not home.startswith("datamodules."),
        f"client_column: {client_column} makes a client of each of its values, but the partition "
        f"{name} mixes them: give partition: ByDomain, or leave out client_column",
    )
