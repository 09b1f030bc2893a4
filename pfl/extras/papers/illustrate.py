"""Pictures of a table's columns, with one line or panel for each row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pfl.extras.papers.outcome import CellOutcome
from pfl.results import pictures
from pfl.results.settings import Setting


def write(
    wanted: Sequence[str], outcomes: Sequence[CellOutcome], folder: Path
) -> tuple[list[Path], list[str]]:
    """Draw each column's finished runs.

    If there are several columns, or several metrics in a column, each has its own folder.

    Returns:
        The files (PNG and SVG), and the reasons for missing pictures.
    """
    files: list[Path] = []
    lacking: dict[str, None] = {}
    columns = list(dict.fromkeys(outcome.cell.column for outcome in outcomes))
    for column in columns:
        chosen = [o for o in outcomes if o.cell.column == column and o.runs]
        inner = folder / _safe("_".join(f"{axis}_{label}" for axis, label in column))
        place = inner if len(columns) > 1 else folder
        # Rows with another metric, or with other rounds, have a separate picture.
        about = list(dict.fromkeys((o.cell.metric, o.cell.at) for o in chosen)) if wanted else []
        for metric, at in about:
            alike = [o for o in chosen if (o.cell.metric, o.cell.at) == (metric, at)]
            settings = [Setting(o.cell.row, tuple(o.runs.values())) for o in alike]
            drawn = pictures.draw(settings, wanted, metric, at)
            lacking |= {f"{one.name}: {one.refusal}": None for one in drawn if one.figure is None}
            inner_place = place / _safe(f"{metric}_{at}") if len(about) > 1 else place
            files += pictures.write(drawn, inner_place, ("png", "svg"))
    return files, list(lacking)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
