"""How pictures look: in print, on a screen, and to the colour-blind.

Settings differ by colour, dash and marker together. Colours are Okabe and Ito's ("Color Universal
Design", 2008), of which the yellow is left out, as it hardly shows on white paper.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2, 2, 2)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
HEAT = "cividis"
WIDTH = 7.0
"""Inches: the text width of a usual page, over one or two columns."""

_STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "savefig.dpi": 200,
    # The same run gives the same file.
    "svg.hashsalt": "pfl",
}


@dataclass(frozen=True)
class Look:
    """What tells one setting from the others; the lengths of the three lists share no divisor."""

    color: str
    linestyle: Any
    marker: str

    @classmethod
    def of(cls, number: int) -> Look:
        """The look of the setting of a number, from 0."""
        return cls(
            COLOURS[number % len(COLOURS)],
            DASHES[number % len(DASHES)],
            MARKERS[number % len(MARKERS)],
        )


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of this module, whatever the user's own; put that back afterwards."""
    with style.context(_STYLE, after_reset=True):
        yield


def panels(count: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels side by side; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, **options)
    return figure, list(axes[0])


def legend_above(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, above them: the figure grows by its height. None for one line."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    # An inch holds about 15 letters, of which line and gap of a column take 7.
    letters = 15 * figure.get_figwidth()
    columns = int(min(len(labels), max(1, letters // (max(map(len, labels)) + 7))))
    # Columns as equal as can be.
    rows = -(-len(labels) // columns)
    columns = -(-len(labels) // rows)
    figure.set_figheight(figure.get_figheight() + 0.18 * rows)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=3)


def wrapped(label: str, inches: float) -> str:
    """A label in lines that fit into so many inches."""
    return "\n".join(textwrap.wrap(label, max(8, int(15 * inches)), break_long_words=False))


def save(figure: Figure, target: Path | IO[str], format: str) -> None:
    """Write a picture as ``png`` or ``svg``; the same figure gives the same file."""
    with styled():
        figure.savefig(target, format=format, metadata={"Date": None} if format == "svg" else {})
