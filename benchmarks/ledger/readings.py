"""What the papers leave open, and what the ledger takes for it.

A *reading* fills in what a paper does not say. Some readings are of the stored curve: which round
counts, how clients are averaged, what the ± is. Others need a run with other settings, which the
ledger has as a departure of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

OF_CURVE = ("criterion", "averaging", "error")
OF_RUN = ("epochs", "schedule", "partition", "cohorts")
FIELDS = (*OF_CURVE, *OF_RUN)


class Reading(NamedTuple):
    """One way to read a paper; a field that is empty has what its cell takes.

    Attributes:
        criterion: Which round counts: ``last``, ``best`` or the mean of the ``last ten``.
        averaging: Over ``clients`` or ``samples``.
        error: The printed ±: ``standard deviation`` or ``standard error``.
        setting: Name of the other settings of the runs.
    """

    criterion: str = ""
    averaging: str = ""
    error: str = ""
    setting: str = ""

    @property
    def name(self) -> str:
        """The reading in words, empty for that which is taken."""
        by = f"by {self.averaging}" if self.averaging else ""
        return ", ".join(filter(None, [self.setting, self.criterion, by, self.error]))

    @property
    def is_simple(self) -> bool:
        """Whether one field at most is unlike what is taken."""
        return sum(map(bool, self)) <= 1


TAKEN = Reading()


class Assumption(BaseModel):
    """What is taken where a paper may be silent.

    Attributes:
        taken: What the cell has.
        source: Where it is from: ``printed``, ``released code``, or ``silent``, for instance.
        others: What it may be instead: values of a :class:`Reading`, or names of departures.
    """

    model_config = ConfigDict(extra="forbid")

    taken: str
    source: str
    others: list[str] = []


class Assumptions(BaseModel):
    """Some fields of a cell."""

    model_config = ConfigDict(extra="forbid")

    criterion: Assumption | None = None
    averaging: Assumption | None = None
    error: Assumption | None = None
    epochs: Assumption | None = None
    schedule: Assumption | None = None
    partition: Assumption | None = None
    cohorts: Assumption | None = None

    def items(self) -> Iterator[tuple[str, Assumption]]:
        """Yield the fields that are given, by name."""
        for field in FIELDS:
            if (known := getattr(self, field)) is not None:
                yield field, known


class Exceptional(Assumptions):
    """What some cells have instead.

    Attributes:
        row: Labels of their rows; all if there are none.
        column: Text in the label of their column.
    """

    row: list[str] = []
    column: str = ""


class Paper(BaseModel):
    """What the ledger knows of a paper, from ``papers.yaml``.

    Attributes:
        own: The rows that are the paper's own method.
        claim: What the paper claims of it, in words.
        lacks: What has not run here, in words.
        same_column: Columns of one table that are columns of another one.
        of_column: Parts of labels of columns that name a reading of the column without them.
        assumed: What every cell has.
        where: What some have instead; later ones come first.
    """

    model_config = ConfigDict(extra="forbid")

    own: list[str] = []
    claim: str = ""
    lacks: str = ""
    same_column: dict[str, str] = {}
    of_column: dict[str, str] = {}
    assumed: Assumptions = Assumptions()
    where: list[Exceptional] = []

    def assumptions(self, row: str, column: str) -> dict[str, Assumption]:
        """Return what a cell has."""
        found = dict(self.assumed.items())
        for special in self.where:
            if row in (special.row or [row]) and special.column in column:
                found |= special.items()
        return found

    def told(self, field: str) -> str:
        """Return a field of all cells in words."""
        known: Assumption | None = getattr(self.assumed, field)
        if known is None:
            return "-"
        others = "".join(f", or {other}" for other in known.others)
        return f"{known.taken} ({known.source}){others}"

    def setting(self, column: str, departure: str) -> tuple[str, str]:
        """Return a column's label, and the settings of a run, without parts that are readings."""
        parts = [departure]
        for text, name in self.of_column.items():
            if text in column:
                column, parts = column.replace(text, ""), [*parts, name]
        return column, ", ".join(filter(None, parts))


def readings(assumed: Mapping[str, Assumption], settings: Iterable[str]) -> Iterator[Reading]:
    """Yield each reading of a cell, first that which is taken.

    Args:
        assumed: What the cell has.
        settings: The settings of its runs.
    """
    of_curve = [["", *assumed[field].others] if field in assumed else [""] for field in OF_CURVE]
    others = sorted(filter(None, settings))
    for setting, criterion, averaging, error in product(["", *others], *of_curve):
        yield Reading(criterion, averaging, error, setting)


def is_open(setting: str, assumed: Mapping[str, Assumption]) -> bool:
    """Return whether settings are what a paper may mean, and not just an experiment."""
    named = {name for field in OF_RUN if field in assumed for name in assumed[field].others}
    return not setting or set(setting.split(", ")) <= named
