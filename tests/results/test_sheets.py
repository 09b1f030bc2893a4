"""Sheets as text."""

from __future__ import annotations

import io

from rich.console import Console

from pfl.results.sheets import Sheet, latex, markdown


def test_columns_of_numbers_are_set_right_and_those_of_words_left():
    sheet = Sheet("t", ["cell", "ours", "verdict"], [["FedAS", "87.03", "out"], ["-", "-2", "-"]])
    assert markdown([sheet]).splitlines()[2:] == [
        "| cell  |  ours | verdict |",
        "| ----- | ----: | ------- |",
        "| FedAS | 87.03 | out     |",
        "| -     |    -2 | -       |",
    ]


def test_a_terminal_shows_brackets_as_they_are():
    """Rich would drop "[ours]", and end the command at "[/b]"."""
    sheet = Sheet("Toys [b]", ["setting [ours]", "n"], [["[/b]", "- [1]"]], ["A [note]."])
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(sheet.rich())
    said = console.export_text()
    for text in ("Toys [b]", "setting [ours]", "[/b]", "- [1]", "A [note]."):
        assert text in said


def test_a_row_that_begins_like_an_option_is_none_to_latex():
    """After a rule, "[" would begin its width, and "*" belong to the end of the row before."""
    sheet = Sheet("t", ["setting", "n"], [["[ours]", "[1]"], ["*", "2"], ["a*", "3"]])
    lines = latex([sheet]).splitlines()[7:10]
    assert lines == [r"    {}[ours] & [1] \\", r"    {}* & 2 \\", r"    a* & 3 \\"]
