"""Pictures of a table's columns, with one line or panel for each row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pfl.extras.papers.outcome import CellOutcome
from pfl.results import pictures
from pfl.results.runs import At
from pfl.results.settings import Setting


def write(
    wanted: Sequence[str], outcomes: Sequence[CellOutcome], folder: Path
) -> tuple[list[Path], list[str]]:
    """Draw each column's finished runs.

    If there are several columns, or several metrics in a column, each has its own folder.

    Returns:
        The files (PNG and SVG), and the reasons for missing pictures.
    """
    # Rows with another metric, or with other rounds, have a separate picture.
    columns: dict[tuple[tuple[str, str], ...], dict[tuple[str, At], list[Setting]]] = {}
    for outcome in outcomes:
        cell, runs = outcome.cell, tuple(outcome.runs.values())
        alike = columns.setdefault(cell.column, {})
        if runs and wanted:
            alike.setdefault((cell.metric, cell.at), []).append(Setting(cell.row, runs))
    files: list[Path] = []
    lacking: dict[str, None] = {}
    for column, about in columns.items():
        name = _safe("_".join(f"{axis}_{label}" for axis, label in column))
        place = folder / name if len(columns) > 1 else folder
        for (metric, at), settings in about.items():
            drawn = pictures.draw(settings, wanted, metric, at)
            lacking |= {f"{one.name}: {one.refusal}": None for one in drawn if one.figure is None}
            inner = place / _safe(f"{metric}_{at}") if len(about) > 1 else place
            files += pictures.write(drawn, inner, ("png", "svg"))
    return files, list(lacking)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
