"""Pictures of a table's columns: one line or panel for each row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pfl.results import pictures
from pfl.results.settings import Setting
from pfl.tables.outcome import Outcome


def write(
    wanted: Sequence[str], outcomes: Sequence[Outcome], folder: Path
) -> tuple[list[Path], list[str]]:
    """Draw each column's finished runs.

    Args:
        wanted: Names of pictures; see :data:`pfl.results.pictures.CAPTIONS`.
        outcomes: The cells.
        folder: For the files; columns of a table that has several get folders of their own.

    Returns:
        The files, PNG and SVG, and why others could not be drawn, each reason once.
    """
    files: list[Path] = []
    lacking: dict[str, None] = {}
    columns = list(dict.fromkeys(outcome.cell.column for outcome in outcomes))
    for column in columns:
        chosen = [o for o in outcomes if o.cell.column == column and o.runs]
        if not chosen or not wanted:
            continue
        settings = [Setting(o.cell.row, tuple(o.runs.values())) for o in chosen]
        cell = chosen[0].cell
        drawn = pictures.draw(settings, wanted, cell.metric, cell.at)
        lacking |= {f"{one.name}: {one.refusal}": None for one in drawn if one.figure is None}
        inner = folder / _safe("_".join(f"{axis}_{label}" for axis, label in column))
        files += pictures.write(drawn, inner if len(columns) > 1 else folder, ("png", "svg"))
    return files, list(lacking)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
