"""Base class of data sets that are given as the columns of a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from datamodules.checks import require
from datamodules.columns import Spelling
from datamodules.partition.partitioner import ByDomain, Partitioner
from datamodules.report import Report, of_table
from datamodules.tables import Table, read_table
from datamodules.tensors import TensorData


class TableData(TensorData):
    """Base class of data sets in a table, whose columns say what is predicted, client and time.

    Args:
        path: A CSV file in UTF-8 with a header, an ARFF file (``*.arff``), or a Parquet file
            (``*.parquet``; needs pyarrow).
        target: The column to predict, or several, for regression and multilabel (zeros and ones).
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        client_column: The natural client of each row, for ``ByDomain``.
        time_column: Numbers or dates (ISO 8601, also months, weeks and quarters, or whole numbers
            such as 20260331; UTC if there is no time zone), which become the column ``time``, in
            seconds.
        missing_values: Texts or numbers that mark a missing value, in place of the usual ones,
            which are those of pandas but None, and ?. An empty cell always does.
        date_format: The form of dates in Python's codes, such as ``%d.%m.%Y``.
        decimal: The decimal sign of numbers.
        thousands: The sign between groups of three digits of numbers.
        separator: The sign between the columns of a text file.
        options: As in :class:`TensorData`.

    Attributes:
        own_clients: ``True`` for a data set with built-in clients, which may be divided otherwise.

    Raises:
        ValueError: A target is named twice, or the partition mixes the clients that
            ``client_column`` names.
    """

    source_argument = "path"
    own_clients: ClassVar[bool] = False

    def __init__(
        self,
        path: str,
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
        require(len({*self.target}) == len(self.target), f"target names a column twice: {named}")
        self.spelling = Spelling(missing_values, date_format, decimal, thousands, separator)
        self.client_column = client_column
        self.time_column = time_column

    @abstractmethod
    def read(self) -> Mapping[str, Any]:
        """Read the tensors by name."""

    def table(self) -> Table:
        """Read the table."""
        return read_table(self.path, spelling=self.spelling)

    def described(
        self,
        table: Table,
        features: Iterable[str],
        dropped: int = 0,
        times: str = "",
        read: str = "",
    ) -> Report:
        """Describe what the columns of a table were read as; see :func:`of_table`."""
        uses = {self.client_column or "": "client", self.time_column or "": "time"}
        uses |= dict.fromkeys(features, "feature") | dict.fromkeys(self.target, "target")
        return of_table(table, uses, dropped, times, read, self.standardise == "none")


def _check_clients(client_column: str | None, partition: Partitioner | str | None) -> None:
    """Refuse a partition of the project that mixes the clients that a column names."""
    name, home = type(partition).__name__, type(partition).__module__
    mixes = isinstance(partition, Partitioner) and not isinstance(partition, ByDomain)
    require(
        client_column is None or not mixes or not home.startswith("datamodules."),
        f"client_column: {client_column} makes a client of each of its values, but the partition "
        f"{name} mixes them: give partition: ByDomain, or leave out client_column",
    )
