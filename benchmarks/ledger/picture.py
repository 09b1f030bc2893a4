"""The ledger in one picture: for each cell our number beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.ledger.judge import Record

_WIDTH = 5.0  # inches: readable on a phone too
_LINE = 0.165  # inches
_LABEL = 64  # points
# Colours of text, of the interval of chance, and of our number by its verdict.
_KINDS = ("text", "chance", "in", "out", "-")
_LIGHT = ("#222222", "#DDDDDD", "#0072B2", "#D55E00", "#7F7F7F")
_DARK = ("#E6E6E6", "#4A4A4A", "#56B4E9", "#FF8A3D", "#9F9F9F")
THEMES = {
    "light": dict(zip(_KINDS, _LIGHT, strict=True)),
    "dark": dict(zip(_KINDS, _DARK, strict=True)),
}
_VERDICTS = {"in": "ours, within chance", "out": "ours, outside", "-": "ours, no interval known"}


def dumbbells(rows: Sequence[Record], colours: Mapping[str, str]) -> Figure:
    """Draw a line for each judged cell with a printed number, from the paper's number to ours.

    Cells are grouped by table, column and partition; those of the papers' own methods have bold
    labels. The background is transparent.
    """
    printed = [row for row in rows if row["reported"] == row["reported"] and not row["departure"]]
    titles = [*dict.fromkeys(map(_title, printed))]
    printed.sort(key=lambda row: (titles.index(_title(row)), -row["reported"]))
    lines: list[str | Record] = []
    for title, cells in groupby(printed, _title):
        lines += [title, *cells]
    size, layout = (_WIDTH, _LINE * (len(lines) + 6)), ConstrainedLayoutEngine()
    figure, text = Figure(figsize=size, layout=layout, facecolor="none"), colours["text"]
    axes = figure.subplots(subplot_kw={"facecolor": "none", "ylim": (len(lines) - 0.5, -0.5)})
    names = ["" if isinstance(row, str) else row["cell"].partition(", ")[0] for row in lines]
    axes.set_yticks(range(len(lines)), names)
    for line, (row, label) in enumerate(zip(lines, axes.get_yticklabels(), strict=True)):
        if isinstance(row, str):
            # A title begins where the labels do, and goes on above the lines of its group.
            where = ("axes fraction", "data")
            name = axes.annotate(row, (0, line), (-_LABEL, 0), where, "offset points", va="center")
            name.set(color=text, fontweight="bold")
            continue
        label.set_fontweight("bold" if row["own"] else "normal")
        ours, theirs, half = (100 * (row[key] or 0) for key in ("ours", "reported", "half"))
        chance, ends, verdict = colours["chance"], [theirs - half, theirs + half], row["verdict"]
        axes.plot(ends, [line] * 2, color=chance, linewidth=5, label="95 % interval of chance")
        axes.plot([theirs, ours], [line] * 2, color=colours[verdict], linewidth=1.4)
        axes.plot(ours, line, "o", color=colours[verdict], markersize=5, label=_VERDICTS[verdict])
        # The paper's ring is drawn last, so that it shows where both numbers agree.
        axes.plot(theirs, line, "o", color=text, markersize=5, mfc="none", label="the paper")
    axes.tick_params(colors=text, length=0)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=colours["chance"], linewidth=0.4)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("test accuracy (%)", color=text)
    known = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(known.values(), known, loc="outside lower center", ncols=2, labelcolor=text)
    return figure


def _title(row: Record) -> str:
    column = row["cell"].partition(", ")[2].removeprefix("data ")
    whose = ", the paper's partition" if row["partition"] == "released" else ""
    return f"{row['paper']}, {row['table']}: {column}{whose}"
