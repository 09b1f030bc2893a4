"""The description of a table: rows, columns, and settings of their cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Columns of a table's CSV file, besides the axes.
COLUMNS = (
    *("row", "metric", "scale", "seeds", "ours", "reported", "difference", "inside", "trouble"),
)


@dataclass(frozen=True)
class CellSettings:
    """Settings that a table, row, column or exception applies to its cells.

    Attributes:
        configs: Configuration files; later ones override earlier ones.
        settings: Dotted keys of the configuration and their values.
        reported: Columns of ``reported.csv`` and their cells; ``None`` if nothing is reported.
        metric: As in ``summary.json``, for instance ``test/personal/acc/last``.
        skip: The reason why these cells are not run; ``None`` if they are.
    """

    configs: tuple[Path, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    reported: Mapping[str, str] | None = field(default_factory=dict)
    metric: str | None = None
    skip: str | None = None


@dataclass(frozen=True)
class Axis:
    """A factor in which columns differ.

    Attributes:
        name: Name in the paper.
        options: Settings of each option, by label.
    """

    name: str
    options: Mapping[str, CellSettings]


@dataclass(frozen=True)
class Exceptional:
    """Settings of some cells, in addition to those of their row and column.

    Attributes:
        where: Labels of rows (under ``row``) and of axes' options.
        part: Settings of these cells.
    """

    where: Mapping[str, tuple[str, ...]]
    part: CellSettings

    def fits(self, row: str, column: Mapping[str, str]) -> bool:
        """Return ``True`` if the exception applies to a cell."""
        labels = {"row": row, **column}
        return all(labels[name] in accepted for name, accepted in self.where.items())


@dataclass(frozen=True)
class TableFile:
    """A table, as its file describes it.

    Attributes:
        path: The file.
        caption: One line.
        seeds: Seeds of each cell's runs.
        seed_keys: Dotted keys that are set to a run's seed.
        common: Settings of all cells.
        rows: Settings of each row, by label; rows are usually methods.
        axes: The axes; columns are all combinations of their options.
        exceptions: Exceptions; later ones override earlier ones.
        notes: Lines below the table.
        pictures: Names of the pictures that belong to the table.
        scaling: Dotted keys and exponents: at scale s, a value is multiplied by s to that power.
    """

    path: Path
    caption: str
    seeds: tuple[int, ...]
    seed_keys: tuple[str, ...]
    common: CellSettings
    rows: Mapping[str, CellSettings]
    axes: tuple[Axis, ...]
    exceptions: tuple[Exceptional, ...]
    notes: tuple[str, ...]
    pictures: tuple[str, ...]
    scaling: Mapping[str, float]
