"""The report of the data as read from a table, a folder or tensors, with doubts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from datamodules.columns import Column
from datamodules.partition.splits import Division
from datamodules.tables import Table
from datamodules.targets import Catalogue
from pfl.core.sheet import Sheet

# Texts that may mark a missing value, but are read as words.
_NOTHING = frozenset(
    (
        *("none", "nil", "void", "unknown", "missing", "-", "--"),
        *("---", ".", "..", "...", "_", "/", "n.a."),
        *("n.d.", "nd", "n\\a", "k.a.", "tbd", "blank", "empty"),
        *("undefined", "unspecified", "#value!", "#ref!", "#div/0!", "#num!", "#name?"),
        *("#null!", "not available", "not applicable", "not known", "no data"),
    )
)
# Numbers that often stand for a missing value.
_SENTINELS = (-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999)
# Maximum number of categories or unused files listed in a line; others are counted.
_NAMED = 8


@dataclass(frozen=True)
class ReadColumn:
    """A column as it was read.

    Attributes:
        name: Name of the column.
        use: Use of the column: feature, target, client, time, or none.
        kind: Kind of its values.
        missing: Counts of the spellings of missing values.
    """

    name: str
    use: str
    kind: str
    missing: Mapping[str, int]

    def lacking(self) -> str:
        """Return the counts of the spellings of missing values as text."""
        return ", ".join(f"{count} {text!r}" for text, count in self.missing.items())


@dataclass(frozen=True)
class Report:
    """The data as read, for printing and storing.

    Attributes:
        samples: Number and kind of the samples.
        columns: The columns of a table.
        facts: Further facts, such as the channels of images, one line each.
        left_out: Unused files or rows, and why.
        doubts: Possible mistakes, one line each.
        classes: Names of the classes.
        clients: Samples of each class for each client, by name; without classes, their number.
    """

    samples: str
    columns: tuple[ReadColumn, ...] = ()
    facts: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    clients: Mapping[str, Sequence[int]] | None = None

    def line(self) -> str:
        """Return the report in one line."""
        kinds = [column.kind.partition(":")[0].partition(",")[0] for column in self.columns]
        counted = (f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        columns = f"{len(kinds)} columns ({', '.join(counted)})" if kinds else ""
        left = f"left out: {len(self.left_out)}" if self.left_out else ""
        doubts = f"doubtful: {len(self.doubts)}" if self.doubts else ""
        parts = (self.samples, columns, *self.facts[:2], left, doubts)
        return "; ".join(part for part in parts if part)

    def plain(self) -> dict[str, Any]:
        """Return the report in plain values, ready for JSON."""
        return asdict(self)

    def sheets(self) -> Iterator[Sheet]:
        """Yield tables: a summary, the columns, and the samples of each client and class."""
        left = [*self.left_out[:_NAMED]]
        more = len(self.left_out) - len(left)
        rows = [["read", self.samples], *(["", fact] for fact in self.facts)]
        rows += [["left out", f"{what}: {why}"] for what, why in left]
        rows += [["", f"and {more} more"]] if more else []
        rows += [["doubtful", doubt] for doubt in self.doubts]
        yield Sheet("", ("what was read", ""), rows)
        if self.columns:
            cells = [[one.name, one.use, one.kind, one.lacking()] for one in self.columns]
            yield Sheet("", ("column", "use", "read as", "missing"), cells)
        if self.clients and self.classes:
            counts = [[name, *map(str, row)] for name, row in self.clients.items()]
            yield Sheet("", ("samples of", *self.classes), counts)


def counted(
    report: Report, contents: Catalogue, division: Division, names: Sequence[str]
) -> Report:
    """Return a report with the samples of each client and class."""
    targets, classes = contents.targets, [*map(str, contents.class_names)]
    labels = targets.labels if targets.has_classes else np.zeros(len(targets), np.int64)
    classes = classes if targets.has_classes else ["all"]
    clients: dict[str, list[int]] = {}
    for client, held in enumerate(division.holdings):
        own = labels[np.concatenate([held.train, held.val, held.test])]
        counts = np.bincount(own, minlength=len(classes)).tolist()
        clients[names[client] if names else str(client)] = counts
    doubts = report.doubts
    if targets.has_classes and len({*labels.tolist()}) == 1:
        doubts += (f"all samples have the class {classes[labels[0]]!r}: nothing can be learnt",)
    return replace(report, classes=tuple(classes), clients=clients, doubts=doubts)


def of_table(
    table: Table, uses: Mapping[str, str], dropped: int, times: str, read: str, as_is: bool
) -> Report:
    """Describe a table.

    Args:
        table: The table, with all of its rows.
        uses: Uses of the columns.
        dropped: Number of rows left out because of a missing value.
        times: Kind of the time column: ``numbers`` or ``dates``.
        read: Kind of the samples, if they are not the rows.
        as_is: Whether numbers are left unstandardised.
    """
    columns = [
        _column(table, name, uses.get(name, "none"), times if uses.get(name) == "time" else "")
        for name in table.columns
    ]
    doubts = chain.from_iterable(
        _doubts(name, table[name], uses[name], as_is) for name in table.columns if name in uses
    )
    rows = f"{len(table):,} rows"
    left = [(f"{dropped:,} rows", "a value is missing")] if dropped else []
    return Report(read or rows, tuple(columns), left_out=tuple(left), doubts=tuple(doubts))


def _column(table: Table, name: str, use: str, times: str) -> ReadColumn:
    if name in table.refused:
        return ReadColumn(name, use, "lists or records", {})
    column = table[name]
    kind = times or column.kind
    as_words = use in ("client", "target") and kind == "numbers" and len(column.present) <= _NAMED
    if kind == "dates":
        found = sorted(column.present)
        kind = f"dates, {found[0]} to {found[-1]}"
    elif kind == "numbers" and not as_words and column.present:
        kind = f"numbers, {np.nanmin(column.numbers):g} to {np.nanmax(column.numbers):g}"
    elif use != "none" or len(column.present) <= _NAMED:
        values = column.present.items()
        named = ", ".join(f"{text[:40]} {count}" for text, count in [*values][:_NAMED])
        more = f", and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
        kind = f"{kind if kind == 'numbers' else 'category'}: {named}{more}"
    else:
        kind = "identifier" if identifies(column) else "words"
    return ReadColumn(name, use, kind, column.lacking)


def identifies(column: Column) -> bool:
    """Return ``True`` if nearly all values of a column of words are distinct."""
    count = sum(column.present.values())
    return count >= _FEW and len(column.present) > 0.8 * count


# Minimum number of rows for ruling out a category by nearly distinct values.
_FEW = 20


def _doubts(name: str, column: Column, use: str, as_is: bool) -> Iterator[str]:
    """Yield what may be wrong with a column that is used."""
    if as_is and use in ("feature", "target") and column.crowded:
        yield f"{name!r} has numbers that single precision does not tell apart: standardise them"
    for text, count in column.present.items():
        if text.lower() in _NOTHING and (column.kind != "numbers"):
            yield (
                f"{name!r} has {text!r} in {count} rows, which is read as a value: name it in "
                "missing_values if it says that there is none"
            )
    if column.kind != "numbers":
        seen: dict[str, str] = {}
        for text in column.present:
            other = seen.setdefault(" ".join(text.casefold().split()), text)
            if other != text:
                yield f"{name!r} has {other!r} and {text!r}, which count as different values"
    elif use == "feature" and column.present:
        yield from _of_numbers(name, column)


def _of_numbers(name: str, column: Column) -> Iterator[str]:
    numbers = column.numbers[~column.missing]
    for sentinel in _SENTINELS:
        others = numbers[numbers != sentinel]
        count = len(numbers) - len(others)
        if count and len(others) and _apart(sentinel, others):
            yield (
                f"{name!r} is {sentinel} in {count} rows, far from its other values: name it in "
                "missing_values if it says that there is none"
            )
    if len(numbers) >= _FEW and column.seconds is not None:
        yield f"{name!r} is read as numbers, but all of them are dates, such as {numbers[0]:.0f}"
    if code := next((text for text in column.present if re.match(r"0\d\d", text)), ""):
        yield f"{name!r} is read as numbers, but {code!r} may be a code: categories would name it"
    steps = np.diff(numbers)
    if len(numbers) >= _FEW and (steps == 1).all():
        yield f"{name!r} numbers the rows: as an input it says where a row stands"


def _apart(sentinel: float, others: np.ndarray[Any, Any]) -> bool:
    """Return ``True`` if a number is far outside the range of others."""
    least, most = float(others.min()), float(others.max())
    room = max(most - least, 1.0)
    return sentinel < least - 2 * room or sentinel > most + 2 * room
