"""The ledger's first picture: a line for each cell, from the paper's number to ours."""

from __future__ import annotations

from dataclasses import replace

from pfl.ledger.dumbbells import THEMES, dumbbells
from tests.ledger.test_rows import ROW

PAPER = replace(ROW, partition="own", ours=0.85, reported=0.9, half=0.02, verdict="out")


def drawn(*rows):
    """Return the texts from top to bottom, and the ends of the lines by their height."""
    axes = dumbbells(rows, THEMES["light"]).axes[0]
    texts = [tick.get_text() for tick in axes.get_yticklabels()]
    for title in axes.texts:
        texts[title.xy[1]] = title.get_text()
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2]
    ends = {}
    for line in lines:
        ends.setdefault(line.get_ydata()[0], []).append((line.get_color(), *line.get_xdata()))
    return texts, ends


def test_the_highest_reported_number_of_a_group_comes_first():
    low = replace(PAPER, cell="Low, beta 0.1", reported=0.5, verdict="in")
    released = replace(PAPER, partition="released")
    texts, _ = drawn(low, released, PAPER)
    assert texts == [
        "FedAS, Table 3: beta 0.1",
        "Low",
        "FedAS, Table 3: beta 0.1, P 0.2, the paper's partition",
        "FedPer",
        "FedAS, Table 3: beta 0.1, P 0.2",
        "FedPer",
    ]
    texts, _ = drawn(replace(PAPER, cell="Low, beta 0.1, P 0.2", reported=0.5), PAPER)
    assert texts[1:] == ["FedPer", "Low"]


def test_a_line_goes_from_the_paper_to_us_over_the_interval():
    """The paper has 90, we have 85, and chance explains 2."""
    _, ends = drawn(PAPER)
    assert ends == {1: [("#DDDDDD", 88, 92), (THEMES["light"].verdicts["out"], 90, 85)]}


def test_a_cell_without_a_printed_number_is_left_out():
    texts, _ = drawn(PAPER, replace(PAPER, cell="Ours, alone", reported=None, verdict="-"))
    assert len(texts) == 2
