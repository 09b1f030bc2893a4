"""Sheets as text."""

from __future__ import annotations

from pfl.results.sheets import Sheet, markdown


def test_columns_of_numbers_are_set_right_and_those_of_words_left():
    sheet = Sheet("t", ["cell", "ours", "verdict"], [["FedAS", "87.03", "out"], ["-", "-2", "-"]])
    assert markdown([sheet]).splitlines()[2:] == [
        "| cell  |  ours | verdict |",
        "| ----- | ----: | ------- |",
        "| FedAS | 87.03 | out     |",
        "| -     |    -2 | -       |",
    ]
