"""The style of pictures, for print, for screens and for colour-blind readers.

Settings differ in colour, dash and marker together. The colours are those of Okabe and Ito ("Color
Universal Design", 2008) without yellow, which is hard to see on white paper.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from matplotlib import rcParams, style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

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
"""Width in inches: the text width of an ordinary page, across one or two columns."""
NARROW = 3.5
"""Width in inches of a telephone's screen."""
_LETTERS = 15  # letters per inch, approximately
_APART = 0.1  # inches on each side of a panel, so that the labels of neighbours do not touch


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker of a setting; the lengths of the three lists are coprime."""

    color: str
    linestyle: Any
    marker: str

    @classmethod
    def of(cls, number: int) -> Look:
        """Return the look of a setting by its number, from 0."""
        return cls(
            COLOURS[number % len(COLOURS)],
            DASHES[number % len(DASHES)],
            MARKERS[number % len(MARKERS)],
        )

    @property
    def line(self) -> dict[str, Any]:
        """Colour and dash, as matplotlib takes them."""
        return {"color": self.color, "linestyle": self.linestyle}

    @property
    def marked(self) -> dict[str, Any]:
        """Colour, dash and marker, as matplotlib takes them."""
        return {**self.line, "marker": self.marker}


@contextmanager
def styled(width: float = WIDTH) -> Iterator[None]:
    """Draw in the style of this module inside, and restore the user's style afterwards.

    Args:
        width: Width of the page in inches.
    """
    page = {"figure.figsize": (width, width)}
    with style.context([Path(__file__).with_name("pfl.mplstyle"), page], after_reset=True):
        yield


def page_width() -> float:
    """Return the width of the page in inches; see :func:`styled`."""
    return float(rcParams["figure.figsize"][0])


def panels(count: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels side by side, or below each other on a narrow page.

    Args:
        count: Number of panels.
        width: Width of the figure in inches on a page of :data:`WIDTH`; a narrow page is filled.
        height: Height of a panel.
        options: For ``Figure.subplots``.
    """
    page = page_width()
    rows = count if page < WIDTH else 1
    size = (min(width, page) if rows == 1 else page, height * rows)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=_APART))
    return figure, list(figure.subplots(rows, count // rows, squeeze=False, **options).flat)


def legend_above(figure: Figure, axes: Axes, least: int = 2) -> None:
    """Put one legend above all panels and enlarge the figure by its height; none for one line."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < least:
        return
    # The line and the gap of a column are as wide as 7 letters.
    letters = _LETTERS * figure.get_figwidth()
    labels = [wrapped(label, (letters - 7) / _LETTERS) for label in labels]
    lines = [label.splitlines() for label in labels]
    widest = max(len(line) for label in lines for line in label)
    columns = int(min(len(labels), max(1, letters // (widest + 7))))
    # Balance the columns.
    rows = -(-len(labels) // columns)
    columns = -(-len(labels) // rows)
    further = sum(map(len, lines)) - len(labels)  # a label of several lines is as wide as the page
    figure.set_figheight(figure.get_figheight() + 0.18 * rows + 0.14 * further)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=3)


def draw_mean(panel: Axes, x: ArrayLike, values: NDArray[Any], look: Look, **options: Any) -> None:
    """Draw the mean of (runs, points) values, and a band of its standard error for several runs."""
    middle = values.mean(0)
    panel.plot(x, middle, **{**look.marked, **options})
    if len(values) > 1:
        error = values.std(0, ddof=1) / np.sqrt(len(values))
        low, high = middle - error, middle + error
        panel.fill_between(x, low, high, color=look.color, alpha=0.18, linewidth=0)


def label_rounds(panel: Axes, label: str = "round") -> None:
    """Label an axis of rounds, with few ticks."""
    panel.set_xlabel(label)
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def per_cent(axis: Axis) -> None:
    """Label shares in per cent, with as many digits as needed; none is more than 100 %."""
    label = FuncFormatter(lambda share, _: f"{100 * share:g}%" if share < 1 + 1e-9 else "")
    axis.set_major_formatter(label)


def wrapped(label: str, inches: float) -> str:
    """Wrap a label to a width in inches."""
    return textwrap.fill(label, max(8, int(_LETTERS * inches)), break_long_words=False)


def save(figure: Figure, target: IO[Any], format: str) -> None:
    """Write a figure as ``png`` or ``svg``; the same figure gives the same file."""
    with styled():
        figure.savefig(target, format=format, metadata={"Date": None} if format == "svg" else {})
