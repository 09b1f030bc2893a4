"""Tables: each row of a CSV or Parquet file is a sample."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.moments import Standardise, standardised
from datamodules.partition.partitioner import Partitioner
from datamodules.partition.splits import Division
from datamodules.record import Record, Times
from datamodules.tables.data import TableData
from datamodules.tables.learnt import MOST_VALUES, LearntTable
from datamodules.tables.table import Table
from datamodules.tables.targets import targets
from datamodules.targets import Floats, Ints
from datamodules.tasks.named import AnyTask
from pfl.core.places import Place
from pfl.core.state import tensors
from pfl.core.task import Binary
from pfl.core.types import Inputs


class TabularData(TableData):
    """A table in which some columns are inputs and others are targets.

    Features with a word in every row, or listed in ``categories``, are one-hot encoded: one column
    for each value in the training samples of the clients that are not held out, in numerical or
    alphabetical order. Other values are encoded as zeros. All other features must be numbers in
    every row. Classes are numbered in the same order.

    Every column of the file that has a number in each row can be used in ``ByColumn``.

    Args:
        path: A CSV file in UTF-8 with a header, an ARFF file (``*.arff``), or a Parquet file
            (``*.parquet``; needs pyarrow).
        target: The column to predict, or several, for regression and multilabel (zeros and ones).
        num_clients: Number of clients, N; if not given, one for each natural client.
        partition: As in :class:`FederatedDataModule`; ``ByDomain`` if not given.
        task: What is predicted; required if the targets are numbers. Words are classes.
        positive: In a ``binary`` task, the value (or several) of the positive class; optional if
            the values are 0 and 1.
        negative: In a ``binary`` task, the value (or several) of the negative class; required if
            the target has several values besides ``positive``.
        features: Input columns, in this order; by default all columns without another use.
        categories: Features to treat as categories even if values are numbers.
        standardise: Subtract the mean from each feature, and divide by its standard deviation
            unless it is zero. With ``train`` both are computed on the training samples of all
            clients that are not held out; with ``client``, which is not possible with a common test
            set, each client's samples use its own training samples. Validation and test samples are
            never used for this. The zeros and ones of categories are not changed.
        missing: ``refuse`` missing values; ``drop`` rows with a missing value in a used column; or
            replace a missing number by the ``mean`` of the training samples that ``standardise``
            uses (those of ``train`` for ``none``), and a missing category by zeros in all its
            columns. Missing targets, clients and times are never replaced.
        options: As in :class:`~datamodules.tables.data.TableData`.

    Raises:
        ValueError: A column or value is missing or unsuitable; the message names file, line and
            column. Or the partition mixes the clients that ``client_column`` names.
        OSError: The file cannot be read.
        ImportError: The file is Parquet, and pyarrow is not installed.
    """

    learns = LearntTable
    _learnt: LearntTable | None

    def __init__(
        self,
        path: Annotated[str, Place()],
        target: str | Sequence[str],
        num_clients: int | None = None,
        partition: Partitioner | str | None = None,
        *,
        task: AnyTask | None = None,
        positive: str | float | Sequence[str | float] | None = None,
        negative: str | float | Sequence[str | float] | None = None,
        features: Sequence[str] | None = None,
        categories: Sequence[str] = (),
        standardise: Standardise = "none",
        missing: Literal["refuse", "drop", "mean"] = "refuse",
        **options: Any,
    ) -> None:
        super().__init__(
            path, target, num_clients, partition, task=task, standardise=standardise, **options
        )
        self.positive = positive
        self.negative = negative
        self.features = features
        self.categories = categories
        self.missing = missing

    @property
    def incomplete(self) -> bool:
        """``True`` if inputs may contain NaN, which ``fitted`` replaces."""
        return self.missing == "mean"

    @property
    def wanted(self) -> Collection[str] | None:
        """Of the data of clients that join later, the columns that the run used."""
        if self._learnt is None:
            return None
        places = [n for n in (self.client_column, self.time_column) if n is not None]
        return {*self._learnt.features, *self.target, *places}

    def record(self) -> Record:
        """Return the columns as read."""
        table, times = self._used, None
        if self.time_column is not None:
            values, kind = table.times(self.time_column)
            times = Times(self.time_column, kind, values)
        return self.columned(self._all, self._features, times, self.categories, table)

    def read(self) -> Mapping[str, Any]:
        """Read the columns as tensors, by name."""
        table = self._used
        x = [_input(table, name, values) for name, values in self._features.items()]
        y = targets(table, self.target, self._task, self.positive, self.negative, self._learnt)
        found: dict[str, Any] = {"x": np.concatenate(x, 1), **y}
        for name in table.columns:
            if name not in table.refused and np.isfinite(table[name].numbers).all():
                found[f"column.{name}"] = table[name].numbers
        return {**found, **self.placed(table)}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Number of input columns; categories depend on the training samples."""
        return (int(self._known(self.division).sum()),)

    def fitted(self, inputs: Inputs, rows: Ints, division: Division) -> Inputs:
        """Return the inputs, standardised and without missing values and unknown categories."""
        known = self._known(division)
        # Row i is sample i.
        x: Floats = self._x[:, known]
        if self.standardise == "none" and not self.incomplete:
            return torch.from_numpy(x)
        everybody, numbers = self._everybody("x", x, division), self._numbers[known]
        for column in np.flatnonzero(numbers & (everybody.counts == 0)):
            name = [*compress(self._columns, known)][column][0]
            raise ValueError(f"no training sample has a value of {name!r}")
        return torch.from_numpy(standardised(x, division, self.standardise, numbers, everybody))

    @property
    def _x(self) -> Floats:
        (x,) = tensors(self._tensors.x)
        return x.numpy()

    @cached_property
    def _columns(self) -> list[tuple[str, str | None]]:
        """The feature of each input column, and its value if the feature is a category."""
        features = self._features.items()
        return [(name, value) for name, values in features for value in _values(values)]

    @property
    def _numbers(self) -> NDArray[np.bool_]:
        """(F,) mask of the input columns that are quantities."""
        return np.array([value is None for _, value in self._columns], bool)

    def _known(self, division: Division) -> NDArray[np.bool_]:
        """Return an (F,) mask of quantities and of category values in training samples."""
        if self._learnt is not None:
            return np.ones(len(self._columns), bool)
        trained = self._x[division.of_members("train")]
        known: NDArray[np.bool_] = self._numbers | trained.any(0)
        require(bool(known.any()), f"{self.path}: no training sample has a value of any feature")
        return known

    def _learn(self) -> LearntTable:
        known = self._known(self.division)
        features: dict[str, list[str] | None] = {
            name: None if values is None else [] for name, values in self._features.items()
        }
        for name, value in compress(self._columns, known):
            if (kept := features[name]) is not None:
                kept.append(str(value))
        classes: list[list[str]] = []
        if isinstance(self._task, Binary):
            values, y = self._used[self.target[0]].labels().astype(str), self._tensors.y.numpy()
            classes = [np.unique(values[y == mark]).tolist() for mark in (0, 1)]
        more = vars(super()._learn())
        return LearntTable(**more, features=features, class_values=classes)

    @cached_property
    def _all(self) -> Table:
        return self.table()

    @cached_property
    def _used(self) -> Table:
        """The rows in use.

        Raises:
            ValueError: A required value is missing.
        """
        table = self._all
        needed = [*self.target, *self.places(table)]
        features = Counter(self._names(table))
        require(len(features) > 0, f"{table.path} has no features besides {', '.join(needed)}")
        for name, count in features.items():
            require(name not in self.target, f"{name!r} cannot be both feature and target")
            require(count == 1, f"features lists {name!r} twice")
        if self.missing == "drop":
            bad = np.any([table[name].gone for name in (*needed, *features)], axis=0)
            require(not bad.all(), f"{table.path}: every row has a missing value")
            return table.take(np.flatnonzero(~bad))
        for name in (*needed, *(() if self.incomplete else features)):
            means = ", or missing: mean to replace it" if name in features else ""
            table.refuse_missing(name, f"; give missing: drop to leave such rows out{means}")
        return table

    @cached_property
    def _features(self) -> Mapping[str, Sequence[str] | None]:
        """The features in order, each with the values of a category, or ``None``."""
        if self._learnt is None:
            return _categories(self._used, self._names(self._used), self.categories)
        _warn_of_values(self._used, self._learnt.features)
        return self._learnt.features

    def _names(self, table: Table) -> Sequence[str]:
        """Return the names of the features."""
        if self._learnt is not None:
            return [*self._learnt.features]
        used = {*self.target, self.client_column, self.time_column}
        return self.features or [name for name in table.columns if name not in used]


def _categories(
    table: Table, features: Sequence[str], categories: Sequence[str]
) -> dict[str, Sequence[str] | None]:
    """Return the features, each with the values of a category in order, or ``None``."""
    for name in categories:
        require(name in features, f"categories has {name!r}, which is not a feature")
    by_feature: dict[str, Sequence[str] | None] = dict.fromkeys(features)
    for name in features:
        if name not in categories and table[name].kind in ("numbers", "both"):
            continue
        column = table[name]
        values = column.values()
        if name not in categories:
            hint = "give features without it, or list it in categories"
            advice = column.advice()
            require(not advice, f"{table.path}: {name!r} {advice}; {hint}")
            require(
                not column.identifies(),
                f"{table.path}: {name!r} has a different value in nearly every row, such as "
                f"{values[:1]}, and is not a category; {hint}",
            )
        require(
            len(values) <= MOST_VALUES,
            f"{table.path}: {name!r} has {len(values):,} different values, too many for a "
            "category; give features without it",
        )
        by_feature[name] = values
    return by_feature


def _values(values: Sequence[str] | None) -> Sequence[str | None]:
    """Return the values of a feature's input columns: a category's, or ``None`` for a number."""
    return [None] if values is None else values


def _input(table: Table, name: str, values: Sequence[str] | None) -> Floats:
    """Return (n, k) numbers: a quantity, or zeros and ones for each value of a category."""
    if values is None:
        return table.numbers(name, "; if it is a category, list it in categories")[:, None]
    found: Floats = (table[name].places(values)[:, None] == np.arange(len(values))).astype(float)
    return found


def _warn_of_values(table: Table, features: Mapping[str, Sequence[str] | None]) -> None:
    """Warn of category values that did not occur in training."""
    for name, values in features.items():
        if values is not None:
            new = (table[name].places(values) < 0) & ~table[name].gone
            if new.any():
                seen = ", ".join(map(str, np.unique(table[name].labels()[new])[:5]))
                warnings.warn(
                    f"{table.path}: {new.sum()} rows have values of {name!r} that the run has not "
                    f"seen ({seen}), which count as missing",
                    stacklevel=2,
                )
