"""The report of the data as read: the record, shown and stored, with doubts first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from datamodules.doubts import doubts
from datamodules.record import Record
from pfl.core.sheet import Sheet

# Maximum number of unused files that are listed; others are counted.
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
        facts: Further facts, such as the channels of images, one line each.
        left_out: Unused files or rows, and why.
        doubts: Possible mistakes, one line each.
        classes: Names of the classes.
        clients: Samples of each class for each client, by name; without classes, their number.
        columns: The columns of a table, those without a use too.
    """

    samples: str
    facts: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    doubts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    clients: Mapping[str, Sequence[int]] | None = None
    columns: tuple[ReadColumn, ...] = ()

    @classmethod
    def of(
        cls,
        record: Record,
        classes: Sequence[str] = (),
        clients: Mapping[str, Sequence[int]] | None = None,
    ) -> Report:
        """Examine a record, and return its report."""
        columns = tuple(
            ReadColumn(one.name, one.use, one.shown, one.missing)
            for one in record.columns
            if one.shown
        )
        return cls(
            record.samples,
            _facts(record),
            tuple(record.notes.left_out),
            doubts(record),
            tuple(classes),
            clients,
            columns,
        )

    def line(self) -> str:
        """Return the report in one line."""
        left = f"left out: {len(self.left_out)}" if self.left_out else ""
        doubtful = f"doubtful: {len(self.doubts)}" if self.doubts else ""
        return "; ".join(part for part in (self.samples, *self._shown(), left, doubtful) if part)

    def _shown(self) -> Sequence[str]:
        """Return the facts for the report in one line: the counts of the kinds of columns."""
        if not self.columns:
            return self.facts[:2]
        kinds = [column.kind.partition(":")[0].partition(",")[0] for column in self.columns]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return [f"{len(kinds)} columns ({counts})"]

    def plain(self) -> dict[str, Any]:
        """Return the report in plain values, ready for JSON."""
        return asdict(self)

    def sheets(self) -> Iterator[Sheet]:
        """Yield tables: doubts and a summary, the columns, and the samples by client and class."""
        left = [*self.left_out[:_NAMED]]
        more = len(self.left_out) - len(left)
        rows = [["doubtful", doubt] for doubt in self.doubts]
        rows += [["read", self.samples], *(["", fact] for fact in self.facts)]
        rows += [["left out", f"{what}: {why}"] for what, why in left]
        rows += [["", f"and {more} more"]] if more else []
        yield Sheet("", ("what was read", ""), rows)
        if self.columns:
            cells = [[one.name, one.use, one.kind, one.lacking()] for one in self.columns]
            yield Sheet("", ("column", "use", "read as", "missing"), cells)
        if self.clients and self.classes:
            counts = [[name, *map(str, row)] for name, row in self.clients.items()]
            yield Sheet("", ("samples of", *self.classes), counts)


def _facts(record: Record) -> tuple[str, ...]:
    """Return what there is to say of a record besides doubts, one line each."""
    facts = [*record.notes.facts]
    if record.lines is not None:
        facts.append(f"{record.lines.written:,} lines with the header")
    kinds = sorted(record.pictures.kinds.items(), key=lambda item: -item[1])
    facts += [f"{count:,} {what}" for what, count in kinds]
    if record.windows is not None and record.windows.calendar != "all":
        facts.append(f"calendar: {record.windows.calendar}")
    return tuple(facts)
