"""The papers' own methods in one picture: how far each cell is from the printed number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.ledger.judge import Record
from pfl.extras.papers.agreement import MARGIN

WIDTH = 6.4  # inches
_LINE = 0.21  # inches
# Colours of text, of what is within the margin, and of cells by their verdict.
_KINDS = ("text", "margin", "equal", "different", "undecided")
_LIGHT = ("#222222", "#E3E9EE", "#0072B2", "#D55E00", "#7F7F7F")
_DARK = ("#E6E6E6", "#33414D", "#56B4E9", "#FF8A3D", "#9F9F9F")
THEMES = {
    "light": dict(zip(_KINDS, _LIGHT, strict=True)),
    "dark": dict(zip(_KINDS, _DARK, strict=True)),
}
_SAID = {
    "equal": "equal: whole 95 % interval within 2 points",
    "different": "different: all of it outside",
    "undecided": "undecided",
}


# Colours for which a page of pfl report has its own, by the theme of the reader.
OF_PAGE = {**THEMES["light"], "text": "#000000", "margin": "#e5e5e5"}


def forest(rows: Sequence[Record], colours: Mapping[str, str], width: float = WIDTH) -> Figure:
    """Draw a line for each judged cell of the papers' own methods: its difference and interval.

    Those on the partitions of released code come first. The background is transparent. Labels are
    above their lines where the picture is narrow.
    """
    own = [row for row in rows if row["own"]]
    own.sort(key=lambda row: (row["partition"] != "released", row["paper"].lower()))
    narrow = width < WIDTH
    size = (width, _LINE * (len(own) * (1 + narrow) + 9 + 3 * narrow))
    layout, text = ConstrainedLayoutEngine(), colours["text"]
    figure = Figure(figsize=size, layout=layout, facecolor="none")
    released = sum(row["partition"] == "released" for row in own)
    axes = figure.subplots(subplot_kw={"facecolor": "none", "ylim": (len(own) - 0.4, -0.6)})
    axes.axvspan(-100 * MARGIN, 100 * MARGIN, color=colours["margin"], linewidth=0)
    axes.axvline(0, color=text, linewidth=0.8)
    if 0 < released < len(own):
        axes.axhline(released - (0.75 if narrow else 0.5), color=text, linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(own)), [] if narrow else map(_label, own))
    for line, row in enumerate(own):
        if narrow:
            place = axes.get_yaxis_transform()
            axes.text(0, line - 0.45, _label(row), color=text, va="center", transform=place)
        verdict, middle = row["verdict"], 100 * row["difference"]
        shown = colours[verdict]
        half = 100 * (row["half"] or 0)
        axes.plot([middle - half, middle + half], [line] * 2, linewidth=1.6, color=shown)
        others = [100 * judged["difference"] for judged in row["readings"][1:]]
        axes.plot(
            others, [line] * len(others), "|", color=text, markersize=7, label="other readings"
        )
        inside = shown if half else "none"
        axes.plot(middle, line, "o", color=shown, mfc=inside, markersize=6, label=_SAID[verdict])
    axes.tick_params(colors=text, length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    # Above, where the picture begins: it is longer than a window.
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("ours minus printed, points", color=text)
    known = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = [name for name in (*_SAID.values(), "other readings") if name in known]
    handles = [known[name] for name in order]
    columns = 1 if narrow else 2
    figure.legend(handles, order, loc="outside upper center", ncols=columns, labelcolor=text)
    return figure


def _label(row: Record) -> str:
    column = row["cell"].partition(", ")[2].removeprefix("data ")
    name = row["cell"].partition(", ")[0]
    whose = "" if row["partition"] == "released" else " (own)"
    return f"{name}, {row['table']}, {column}{whose}"
