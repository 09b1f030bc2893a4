"""Tables: each row of a CSV or Parquet file is a sample."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.learnt import MOST_VALUES, Learnt
from datamodules.moments import Standardise, standardised
from datamodules.named_tensors import TaskName
from datamodules.partition.partitioner import Partitioner
from datamodules.partition.splits import Division
from datamodules.report import Report, identifies, of_table
from datamodules.table_targets import KnownClasses, columns_of, targets
from datamodules.tables import Spelling, Table, read_table
from datamodules.targets import Floats, Ints
from datamodules.tensors import TensorData, check_clients
from pfl.core.types import Inputs


class TabularData(TensorData):
    """A table in which some columns are inputs and others are targets.

    A feature with a word in every row, or named in ``categories``, is replaced by one column of
    zeros and ones for each value that it has in the training samples of the clients that are not
    held out, in numerical or alphabetical order. A sample with any other value has zeros in all
    these columns. Any other feature must be a number in every row. Classes are numbered in the same
    order.

    Every column of the file that has a number in each row can be used in ``ByColumn``.

    Args:
        path: A CSV file in UTF-8 with commas and a header, an ARFF file (``*.arff``), or a Parquet
            file (``*.parquet``; needs pyarrow).
        target: The column to predict, or several, for regression and multilabel (zeros and ones).
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        task: What is predicted; required if the targets are numbers. Words are classes.
        positive: In a ``binary`` task, the value (or several) of the positive class. It may be left
            out if the values are 0 and 1.
        negative: In a ``binary`` task, the value (or several) of the negative class; it must be
            given if the target has several other values than ``positive``.
        features: The input columns, in this order; if not given, all columns without another use.
        categories: Features whose values are categories although some are numbers.
        client_column: The natural client of each row, for ``ByDomain``.
        time_column: Numbers or dates (ISO 8601, also months, weeks and quarters, or whole numbers
            such as 20260331; UTC if there is no time zone), which become the column ``time``, in
            seconds.
        standardise: Subtract the mean from each feature, and divide by its standard deviation
            unless it is zero. With ``train`` both are computed on the training samples of all
            clients that are not held out; with ``client``, which is not possible with a common test
            set, each client's samples use its own training samples. Validation and test samples are
            never used for this. The zeros and ones of categories are not changed.
        missing: ``refuse`` missing values; ``drop`` rows with a missing value in a used column; or
            replace a missing number by the ``mean`` of the training samples that ``standardise``
            uses (those of ``train`` for ``none``), and a missing category by zeros in all its
            columns. Missing targets, clients and times are never replaced.
        missing_values: Texts or numbers that mark a missing value, in place of the usual ones,
            which are those of pandas but None, and ?. An empty cell always does.
        date_format: The form of dates in Python's codes, such as ``%d.%m.%Y``.
        decimal: The decimal sign of numbers.
        thousands: The sign between groups of three digits of numbers.
        separator: The sign between the columns of a text file.
        options: As in :class:`FederatedDataModule`.

    Attributes:
        own_clients: ``True`` for a data set with built-in clients, which may be divided otherwise.

    Raises:
        ValueError: A column or value is missing or unsuitable; the message names file, line and
            column. Or the partition mixes the clients that ``client_column`` names.
        OSError: The file cannot be read.
        ImportError: The file is Parquet, and pyarrow is not installed.
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
        task: TaskName | None = None,
        positive: str | float | Sequence[str | float] | None = None,
        features: Sequence[str] | None = None,
        categories: Sequence[str] = (),
        client_column: str | None = None,
        time_column: str | None = None,
        standardise: Standardise = "none",
        missing: Literal["refuse", "drop", "mean"] = "refuse",
        negative: str | float | Sequence[str | float] | None = None,
        missing_values: Sequence[str | float] | None = None,
        date_format: str | None = None,
        decimal: str = ".",
        thousands: str | None = None,
        separator: str = ",",
        **options: Any,
    ) -> None:
        if not self.own_clients:
            check_clients(client_column, partition)
        super().__init__(
            path, num_clients, partition, task=task, standardise=standardise, **options
        )
        self.path = path
        self.target = columns_of(target)
        self.positive = positive
        self.negative = negative
        self.spelling = Spelling(missing_values, date_format, decimal, thousands, separator)
        self.features = features
        self.categories = categories
        self.client_column = client_column
        self.time_column = time_column
        self.missing = missing

    @property
    def incomplete(self) -> bool:
        """``True`` if inputs may contain NaN, which ``fitted`` replaces."""
        return self.missing == "mean"

    def table(self) -> Table:
        """Read the table, before rows are dropped."""
        return read_table(self.path, spelling=self.spelling)

    def report(self) -> Report:
        """Describe what the columns were read as."""
        return self._columns.report

    def read(self) -> Mapping[str, Any]:
        """Read the columns as tensors, by name."""
        return self._columns.tensors

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Number of input columns, which training samples decide where there are categories."""
        return (int(self._known(self.division).sum()),)

    def fitted(self, inputs: Inputs, rows: Ints, division: Division) -> Inputs:
        """Return the inputs standardised, without missing values and unknown categories."""
        columns, known = self._columns, self._known(division)
        # Row i is sample i.
        x: Floats = columns.tensors["x"][:, known]
        numbers = columns.numbers[known]
        if self.standardise == "none" and not self.incomplete:
            return torch.from_numpy(x)
        everybody = self._everybody("x", x, division)
        names = [name for name, used in zip(columns.names, known, strict=True) if used]
        for column in np.flatnonzero(numbers & (everybody.counts == 0)):
            raise ValueError(f"no training sample has a value of {names[column]!r}")
        return torch.from_numpy(standardised(x, division, self.standardise, numbers, everybody))

    def _known(self, division: Division) -> NDArray[np.bool_]:
        """Return an (F,) mask of quantities, and of values of categories in training samples."""
        columns = self._columns
        trained = columns.tensors["x"][division.of_members("train")]
        known: NDArray[np.bool_] = columns.numbers | trained.any(0)
        if self._learnt is not None:
            known = np.ones_like(known)
        require(bool(known.any()), f"{self.path}: no training sample has a value of any feature")
        return known

    def _learn(self) -> Learnt:
        features, known = dict[str, list[str] | None](), iter(self._known(self.division))
        for name, values in self._columns.features.items():
            used = [next(known) for _ in ([name] if values is None else values)]
            features[name] = None if values is None else [*compress(values, used)]
        return replace(super()._learn(), features=features, class_values=self._columns.class_values)

    @cached_property
    def _columns(self) -> _Columns:
        whole, learnt = self.table(), self._learnt
        table = self._complete(whole)
        features: Mapping[str, Sequence[str] | None]
        classes = None
        if learnt is None:
            features = _categories(table, self._features(table), self.categories)
        else:
            features = learnt.features
            classes = KnownClasses(learnt.class_names, learnt.class_values)
            _warn_of_values(table, features)
        names, numbers, x = _inputs(table, features)
        y = targets(table, self.target, self._task, self.positive, self.negative, classes)
        values: list[list[str]] = []
        if self._task == "binary":
            marked = table.labels(self.target[0]).astype(str)
            values = [np.unique(marked[y["y"] == mark]).tolist() for mark in (0, 1)]
        kind = ""
        tensors: dict[str, Any] = {"x": x, **y}
        if (client := self._clients_of(table)) is not None:
            tensors["client"] = table.labels(client)
        for name in filter(table.usable, table.columns):
            if table.holds(name) == "numbers" and not table.missing(name).any():
                tensors[f"column.{name}"] = table.numbers(name)
        if self.time_column is not None:
            tensors["column.time"], kind = table.times(self.time_column)
        uses = {client or "": "client", self.time_column or "": "time"}
        uses |= dict.fromkeys(features, "feature") | dict.fromkeys(self.target, "target")
        report = of_table(whole, uses, len(whole) - len(table), kind)
        return _Columns(tensors, features, names, numbers, values, report)

    def _clients_of(self, table: Table) -> str | None:
        """Return the column of clients, if there is one; a later client's own table may lack it."""
        single = self._learnt is not None and self.client_column not in table.columns
        return None if single else self.client_column

    def _features(self, table: Table) -> Sequence[str]:
        if self._learnt is not None:
            return [*self._learnt.features]
        if self.features is not None:
            return self.features
        used = {*self.target, self.client_column, self.time_column}
        return [name for name in table.columns if name not in used]

    def _complete(self, table: Table) -> Table:
        """Apply the policy for missing values.

        Raises:
            ValueError: A value is missing where it must not be.
        """
        places = [n for n in (self._clients_of(table), self.time_column) if n is not None]
        needed, features = [*self.target, *places], Counter(self._features(table))
        require(len(features) > 0, f"{table.path} has no features besides {', '.join(needed)}")
        for name, count in features.items():
            require(name not in self.target, f"{name!r} cannot be both feature and target")
            require(count == 1, f"features lists {name!r} twice")
        if self.missing == "drop":
            bad = np.any([table.missing(name) for name in (*needed, *features)], axis=0)
            require(not bad.all(), f"{table.path}: each row has a missing value")
            return table.take(np.flatnonzero(~bad))
        for name in (*needed, *(() if self.incomplete else features)):
            means = ", or missing: mean to replace it" if name in features else ""
            table.refuse(
                name,
                np.flatnonzero(table.missing(name)),
                f"is a missing value; give missing: drop to leave such rows out{means}",
            )
        return table


class _Columns(NamedTuple):
    """A table as tensors.

    Attributes:
        tensors: Tensors in the form that :class:`TensorData` takes.
        features: The features in order, each with the values of a category, or ``None``.
        names: (F,) names of the input columns.
        numbers: (F,) mask of the columns that are quantities, not from categories.
        class_values: The values of the two classes of a binary task.
        report: What the columns were read as.
    """

    tensors: dict[str, Any]
    features: Mapping[str, Sequence[str] | None]
    names: list[str]
    numbers: NDArray[np.bool_]
    class_values: list[list[str]]
    report: Report


def _categories(
    table: Table, features: Sequence[str], categories: Sequence[str]
) -> dict[str, Sequence[str] | None]:
    """Return the features, each with the values of a category in order, or ``None``."""
    for name in categories:
        require(name in features, f"categories names {name!r}, which is not a feature")
    by_feature: dict[str, Sequence[str] | None] = dict.fromkeys(features)
    for name in features:
        if name not in categories and table.holds(name) in ("numbers", "both"):
            continue
        column = table.column(name)
        values = column.values()
        if name not in categories:
            hint = "list the features without it, or name it in categories"
            advice = column.advice()
            require(not advice, f"{table.path}: {name!r} {advice}; {hint}")
            require(
                not identifies(column),
                f"{table.path}: {name!r} has another value in nearly every row, such as "
                f"{values[:1]}, and is no category; {hint}",
            )
        require(
            len(values) <= MOST_VALUES,
            f"{table.path}: {name!r} has {len(values):,} different values, too many for a "
            "category; list the features without it",
        )
        by_feature[name] = values
    return by_feature


def _inputs(
    table: Table, features: Mapping[str, Sequence[str] | None]
) -> tuple[list[str], NDArray[np.bool_], Floats]:
    """Return (F,) names, an (F,) mask of the columns that are quantities, and (n, F) numbers."""
    names: list[str] = []
    numbers: list[bool] = []
    parts: list[Floats] = []
    for name, values in features.items():
        if values is None:
            names.append(name)
            numbers.append(True)
            parts.append(
                table.numbers(name, "; if it is a category, name it in categories")[:, None]
            )
            continue
        names += [f"{name}={value}" for value in values]
        numbers += [False] * len(values)
        parts.append(
            (table.column(name).places(values)[:, None] == np.arange(len(values))).astype(float)
        )
    return names, np.array(numbers), np.concatenate(parts, 1)


def _warn_of_values(table: Table, features: Mapping[str, Sequence[str] | None]) -> None:
    """Warn of values of a category that nobody had in training."""
    for name, values in features.items():
        if values is not None:
            new = (table.column(name).places(values) < 0) & ~table.missing(name)
            if new.any():
                seen = ", ".join(map(str, np.unique(table.labels(name)[new])[:5]))
                warnings.warn(
                    f"{table.path}: {new.sum()} rows have values of {name!r} that the run has not "
                    f"seen ({seen}), which count as missing",
                    stacklevel=2,
                )
