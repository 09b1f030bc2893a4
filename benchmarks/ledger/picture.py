"""The ledger in one picture: for each cell our number beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.ledger.judge import Record

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


def dumbbells(rows: Sequence[Record], theme: Theme) -> Figure:
    """Draw a line for each judged cell with a printed number, from the paper's number to ours.

    Cells are grouped by table, column and partition; those of the papers' own methods have bold
    labels. The background is transparent.
    """
    printed = sorted(
        (row for row in rows if row["reported"] == row["reported"] and not row["departure"]),
        key=lambda row: (list(map(title, rows)).index(title(row)), -row["reported"]),
    )
    groups = [(name, [*members]) for name, members in groupby(printed, title)]
    lines = len(groups) + len(printed)
    layout = ConstrainedLayoutEngine()
    figure = Figure(figsize=(_WIDTH, _LINE * (lines + 6)), layout=layout, facecolor="none")
    axes = figure.subplots(subplot_kw={"facecolor": "none", "ylim": (lines - 0.5, -0.5)})
    labels = [(name, row) for name, members in groups for row in (None, *members)]
    names = [row["cell"].partition(", ")[0] if row else "" for _, row in labels]
    axes.set_yticks(range(lines), names)
    for line, (tick, (name, row)) in enumerate(zip(axes.get_yticklabels(), labels, strict=True)):
        if row is not None:
            tick.set_fontweight("bold" if row["own"] else "normal")
            _dumbbell(axes, line, row, theme)
            continue
        # A title begins where the labels do, and goes on above the lines of its group.
        where = ("axes fraction", "data")
        text = axes.annotate(name, (0, line), (-_LABEL, 0), where, "offset points", va="center")
        text.set(color=theme.text, fontweight="bold")
    axes.tick_params(colors=theme.text, length=0)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=theme.interval, linewidth=0.4)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("test accuracy (%)", color=theme.text)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=2, labelcolor=theme.text
    )
    return figure


def title(row: Record) -> str:
    """Return the title of a cell's group."""
    column = row["cell"].partition(", ")[2].removeprefix("data ")
    whose = ", the paper's partition" if row["partition"] == "released" else ""
    return f"{row['paper']}, {row['table']}: {column}{whose}"


def _dumbbell(axes: Axes, line: int, row: Record, theme: Theme) -> None:
    ours, theirs, half = (100 * (row[key] or 0) for key in ("ours", "reported", "half"))
    color, label = theme.verdicts[row["verdict"]], _VERDICTS[row["verdict"]]
    ends = [theirs - half, theirs + half]
    axes.plot(ends, [line] * 2, color=theme.interval, linewidth=5, label="95 % interval of chance")
    axes.plot([theirs, ours], [line] * 2, color=color, linewidth=1.4)
    axes.plot(ours, line, "o", color=color, markersize=5, label=label)
    # The paper's ring is drawn last, so that it shows where both numbers agree.
    (ring,) = axes.plot(theirs, line, "o", color=theme.text, markersize=5, label="the paper")
    ring.set_markerfacecolor("none")
