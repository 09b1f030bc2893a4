"""The ledger's picture: a line for each cell, from the paper's number to ours."""

from __future__ import annotations

from benchmarks.ledger.picture import THEMES, dumbbells
from tests.ledger.known import ledger, run

LIGHT = THEMES["light"]


def drawn(*runs, **changes):
    """Return the texts from top to bottom with their weights, and the lines by their height."""
    rows = [row | changes for row in ledger(*runs).rows]
    axes = dumbbells(rows, LIGHT).axes[0]
    texts = [(tick.get_text(), tick.get_fontweight()) for tick in axes.get_yticklabels()]
    for title in axes.texts:
        texts[title.xy[1]] = (title.get_text(), title.get_fontweight())
    ends = {}
    for line in axes.lines:
        if len(line.get_xdata()) == 2:
            end = (line.get_color(), *(round(x, 9) for x in line.get_xdata()))
            ends.setdefault(line.get_ydata()[0], []).append(end)
    return texts, ends


def test_a_line_goes_from_the_paper_to_us_over_the_interval():
    """The paper has 90, we have 85, and chance explains 2."""
    _, ends = drawn(run("A", 0.85, 0.9), half=0.02, verdict="out")
    assert ends == {1: [("#DDDDDD", 88, 92), (LIGHT["out"], 90, 85)]}
