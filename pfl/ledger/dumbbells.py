"""The ledger in one picture: for each cell our number beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from pfl.ledger.rows import LedgerRow

_WIDTH = 5.0  # inches: readable on a phone too
_LINE = 0.165  # inches
_LABEL = 64  # points
_VERDICTS = {"in": "ours, within chance", "out": "ours, outside", "-": "ours, no interval known"}


class Theme(NamedTuple):
    """Colours on a page: of text, of the paper's interval, and of each verdict."""

    text: str
    interval: str
    verdicts: dict[str, str]


THEMES = {
    "light": Theme("#222222", "#DDDDDD", {"in": "#0072B2", "out": "#D55E00", "-": "#7F7F7F"}),
    "dark": Theme("#E6E6E6", "#4A4A4A", {"in": "#56B4E9", "out": "#FF8A3D", "-": "#9F9F9F"}),
}


def dumbbells(rows: Sequence[LedgerRow], theme: Theme) -> Figure:
    """Draw a line for each cell with a reported number, from the paper's number to ours.

    Cells are grouped by table, column and partition, and the background is transparent.
    """
    printed = [row for row in rows if row.reported is not None]
    titles = dict.fromkeys(map(_title, printed))
    groups = [(title, [row for row in printed if _title(row) == title]) for title in titles]
    lines = len(groups) + len(printed)
    layout = ConstrainedLayoutEngine()
    figure = Figure(figsize=(_WIDTH, _LINE * (lines + 6)), layout=layout, facecolor="none")
    axes = figure.subplots()
    labels: list[str] = []
    for title, members in groups:
        # A title begins where the labels do, and goes on above the lines of its group.
        axes.annotate(
            title,
            (0, len(labels)),
            (-_LABEL, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=theme.text,
            fontweight="bold",
            va="center",
        )
        labels.append("")
        for row in sorted(members, key=lambda row: -(row.reported or 0)):
            _dumbbell(axes, len(labels), row, theme)
            labels.append(row.cell.partition(", ")[0])
    axes.set_facecolor("none")
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_yticks(range(lines), labels)
    axes.tick_params(colors=theme.text, length=0)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=theme.interval, linewidth=0.4)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("test accuracy (%)", color=theme.text)
    figure.legend(
        handles=_legend([row.verdict for row in printed], theme),
        loc="outside lower center",
        ncols=2,
        labelcolor=theme.text,
    )
    return figure


def _title(row: LedgerRow) -> str:
    column = row.cell.partition(", ")[2].removeprefix("data ")
    whose = ", the paper's partition" if row.partition == "released" else ""
    return f"{row.paper}, {row.table}: {column}{whose}"


def _dumbbell(axes: Axes, line: int, row: LedgerRow, theme: Theme) -> None:
    ours, theirs, half = (100 * (value or 0) for value in (row.ours, row.reported, row.half))
    color = theme.verdicts[row.verdict]
    axes.plot([theirs - half, theirs + half], [line, line], color=theme.interval, linewidth=5)
    axes.plot([theirs, ours], [line, line], color=color, linewidth=1.4)
    axes.plot(ours, line, "o", color=color, markersize=5)
    # The paper's ring is drawn last, so that it shows where both numbers agree.
    axes.plot(theirs, line, "o", color=theme.text, markersize=5, markerfacecolor="none")


def _legend(verdicts: Sequence[str], theme: Theme) -> list[Line2D]:
    ring = Line2D([], [], color=theme.text, marker="o", linestyle="", markerfacecolor="none")
    ring.set_label("the paper")
    bar = Line2D([], [], color=theme.interval, linewidth=5, label="95 % interval of chance")
    dots = [
        Line2D([], [], color=theme.verdicts[key], marker="o", linestyle="-", label=text)
        for key, text in _VERDICTS.items()
        if key in verdicts
    ]
    return [ring, bar, *dots]
