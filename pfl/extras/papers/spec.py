"""The form of a table file: rows, columns and settings of cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pfl.extras.papers.reported import KEYS

# Columns of a table's CSV file, besides the axes.
COLUMNS = (
    *("row", "metric", "scale", "seeds", "ours", "reported", "difference", "verdict", "trouble"),
)


# Forms of the file (see pfl.disk.form), completed by pfl.extras.papers.reader.
@dataclass(frozen=True)
class CellSettings:
    """Settings that a table, row, column or exception applies to its cells.

    Attributes:
        config: Configuration files (paths once read); later ones override earlier ones.
        set: Dotted keys of the configuration and their values.
        reported: Columns of ``reported.csv`` and their cells (texts once read); ``False`` if
            nothing is reported.
        metric: Metric as in ``summary.json``, such as ``test/personal/acc/last``.
        skip: Reason why these cells are not run; ``None`` if they are.
    """

    config: str | list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    reported: dict[Literal[KEYS], Any] | Literal[False] = field(  # type: ignore[valid-type]
        default_factory=dict
    )
    metric: str | None = None
    skip: str | None = None


# A text or a list gives configuration files.
Parts: TypeAlias = dict[str, CellSettings | str | list[str] | None]


@dataclass(frozen=True)
class AxisForm:
    """The form of an axis."""

    values: list[Any] | Parts
    set: str | None = None
    reported: Literal[KEYS] | None = None  # type: ignore[valid-type]


@dataclass(frozen=True)
class Exceptional(CellSettings):
    """Settings of some cells, in addition to those of their row and column.

    Attributes:
        where: Labels of rows (under ``row``) and of axes' options (lists of texts once read).
    """

    where: dict[str, Any] = field(default_factory=dict)

    def fits(self, row: str, column: Mapping[str, str]) -> bool:
        """Return ``True`` if the exception applies to a cell."""
        labels = {"row": row, **column}
        return all(labels[name] in accepted for name, accepted in self.where.items())


@dataclass(frozen=True, kw_only=True)
class TableForm(CellSettings):
    """The form of the file.

    Attributes:
        caption: One-line description.
        rows: Settings of each row, by label.
        paper: Paper of the reported numbers.
        table: Number of the paper's table.
        seeds: Seeds of each cell's runs.
        seed_keys: Dotted keys that are set to a run's seed.
        columns: The axes, by name.
        cells: Exceptions; later ones override earlier ones.
        notes: Lines below the table.
        pictures: Names of the table's pictures.
        scaling: Exponents of dotted keys: at scale s, a value is multiplied by s to that power.
    """

    caption: str
    metric: str = field()  # required here, unlike in a part
    rows: Parts
    paper: str | None = None
    table: str | None = None
    seeds: list[int] = field(default_factory=lambda: [0])
    seed_keys: list[str] = field(default_factory=lambda: ["seed"])
    columns: dict[str, AxisForm] = field(default_factory=dict)
    cells: list[Exceptional] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    scaling: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TableFile(TableForm):
    """A table: the content of its file, parsed.

    Attributes:
        path: The file.
        common: Settings of all cells.
        row_settings: Settings of each row, by label; rows are usually methods.
        axes: Factors of the columns, with settings of each option by label; columns are all
            combinations of options.
    """

    path: Path
    common: CellSettings
    row_settings: Mapping[str, CellSettings]
    axes: Mapping[str, Mapping[str, CellSettings]]
