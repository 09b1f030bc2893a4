"""Targets and classes from the columns of a table, for any task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.checks import require
from datamodules.tables.learnt import LearntTable
from datamodules.tables.table import Table
from datamodules.targets import plain_name
from pfl.core.task import Binary, Classification, MultiLabel, Task


def targets(
    table: Table,
    names: Sequence[str],
    task: Task | None,
    positive: Any = None,  # noqa: ANN401
    negative: Any = None,  # noqa: ANN401
    learnt: LearntTable | None = None,
) -> dict[str, Any]:
    """Return the targets and class names, in the form of ``TensorData``.

    Args:
        table: The table.
        names: The target columns.
        task: Task; ``None`` to infer it from the values.
        positive: In a binary task, value or values of the positive class.
        negative: Value or values of the negative class; ``None`` if there is one other value.
        learnt: Values learnt by the run that the clients join, if any.

    Raises:
        ValueError: The targets do not fit the task, or the task must be given.
    """
    first = names[0]
    words = len(names) == 1 and table[first].kind in ("words", "dates")
    task = Classification() if task is None and words else task
    if task is None:
        raise ValueError(
            f"{first!r} contains numbers: give task: classification, multilabel or regression, "
            "or binary for a positive class"
        )
    binary = isinstance(task, Binary)
    for key, value in (("positive", positive), ("negative", negative)):
        require(value is None or binary, f"{key} belongs to task: binary")
    if binary:
        require(len(names) == 1, "task: binary needs one target column")
        return _marked(table, first, positive, negative, learnt)
    if task.has_classes:
        require(len(names) == 1, "task: classification needs one target column")
        if learnt is None:
            classes, y = np.unique(table[first].labels(), return_inverse=True)
            return {"y": y, "class_names": classes}
        y = table[first].places(learnt.class_names)
        _refuse_classes(table, first, y < 0, learnt.class_names)
        return {"y": y, "class_names": learnt.class_names}
    y = np.stack([table.numbers(name) for name in names], 1)
    if isinstance(task, MultiLabel):
        for name, values in zip(names, y.T, strict=True):
            bad = np.flatnonzero((values != 0) & (values != 1))
            table.refuse(name, bad, "is not a label: expected 0 or 1")
    return {"y": y}


def _marked(
    table: Table,
    name: str,
    positive: Any,  # noqa: ANN401
    negative: Any,  # noqa: ANN401
    learnt: LearntTable | None,
) -> dict[str, Any]:
    """Return the zeros and ones of a binary task, and the names of both classes."""
    if learnt is not None:
        groups = learnt.class_values or [[value] for value in learnt.class_names]
        place = table[name].places([*chain(*groups)])
        _refuse_classes(table, name, place < 0, [*chain(*groups)])
        return {"y": place >= len(groups[0]), "class_names": learnt.class_names}
    values = table[name].labels().astype(str)
    present = np.unique(values)
    shown = ", ".join(present[:10])
    if positive is None:
        zero_one = {*present} <= {"0", "1"}
        require(zero_one, f"{name!r} has the values {shown}: give positive")
        positive = 1
    chosen, others = _named(positive), _named([] if negative is None else negative)
    y = np.isin(values, chosen).astype(np.int64)
    for key, words in (("positive", chosen), ("negative", others)):
        if lost := [value for value in words if value not in present]:
            raise ValueError(f"{key}: {name!r} has no value {lost[0]!r}, only {shown}")
    left = [value for value in present if value not in chosen]
    require(len(left) > 0, f"positive: all values of {name!r} ({shown}) would be positive")
    require(
        len(left) == 1 or bool(others),
        f"{name!r} has {len(left)} values besides the positive ones ({', '.join(left[:10])}): give "
        "negative, and list those that mark a missing outcome in missing_values",
    )
    others = others or left
    both = np.array([*others, *chosen])
    require(len(set(both)) == len(both), f"a value of {name!r} is both positive and negative")
    unmarked = np.flatnonzero(~np.isin(values, both))
    table.refuse(name, unmarked, "is neither a positive nor a negative value")
    names = [" or ".join(words) if len(words) < 5 else "other" for words in (others, chosen)]
    return {"y": y, "class_names": names}


def _named(values: Any) -> list[str]:  # noqa: ANN401
    """Return one or more values as texts, with integers as in :meth:`Column.labels`."""
    several = values if isinstance(values, list | tuple) else [values]
    return [
        plain_name(v) if isinstance(v, str) else str(int(v) if v == int(v) else v) for v in several
    ]


def _refuse_classes(
    table: Table, name: str, other: NDArray[np.bool_], known: Sequence[str]
) -> None:
    listed = ", ".join(known[:20])
    table.refuse(name, np.flatnonzero(other), f"is not a class of the run, only {listed}")
