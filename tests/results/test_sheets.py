"""Sheets as text."""

from __future__ import annotations

import re

from pfl.core.sheet import Sheet
from pfl.results.compare import compare
from pfl.results.compare_sheets import sheets
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.results.sheets import latex
from tests.helpers.terminal import printed
from tests.results.folders import write_run


def test_a_terminal_shows_brackets_as_they_are():
    """Rich would drop "[ours]", and end the command at "[/b]"."""
    said = printed([Sheet("Toys [b]", ["setting [ours]", "n"], [["[/b]", "- [1]"]], ["A [note]."])])
    for text in ("Toys [b]", "setting [ours]", "[/b]", "- [1]", "A [note]."):
        assert text in said


def test_a_comparison_fits_eighty_columns_and_no_number_is_wrapped(tmp_path):
    """Five methods, two seeds, one long name: what the table leaves out is said below it."""
    long = {"model": {"class_path": "FedAvg", "init_args": {"lr": 0.05, "hidden_units": 64}}}
    other = {"model": {"class_path": "FedAvg", "init_args": {"lr": 0.1, "hidden_units": 128}}}
    configs = [long, other, *({"model": {"class_path": name}} for name in ("A", "B", "C"))]
    for number, config in enumerate(configs):
        for seed in (1, 2):
            path = tmp_path / f"{number}-{seed}"
            scores = [[0.42 + 0.158 * (seed - 1), 0.5 + 0.01 * number]]
            write_run(path, scores, config["model"]["class_path"], seed=seed, config=config)
    settings, _ = group([RunFolder.read(path) for path in sorted(tmp_path.iterdir())])
    made = sheets(compare(settings))
    said = printed(made)
    assert max(map(len, said.splitlines())) <= 80
    assert "49.95 ± 3.95" in said
    left_out = re.search(r"Left out to fit 80 columns: (.*); a wider", said)[1].split(", ")
    shown = {number for number, head in enumerate(made[0].columns) if head not in left_out}
    assert {0, 3} <= shown
    for row in made[0].rows:
        assert all(row[number] in said for number in shown - {0})
    assert printed(made, 200).count("Left out") == 0


def test_long_names_lose_parts_or_their_beginning_if_they_still_differ():
    """Of two names that begin alike, only the ends tell them apart."""
    alike = "FedAvg, optimizer=torch.optim.AdamW, lr="
    names = ["FedPer, lr=0.1, weight_decay=0.1", f"{alike}1", f"{alike}2"]
    sheet = Sheet("", ["setting", *"ab"], [[name, "1" * 20, "2" * 30] for name in names])
    lines = printed([sheet]).splitlines()
    assert max(map(len, lines)) <= 80
    said = [line.partition("  ")[0] for line in lines[2:5]]
    assert said == ["FedPer, lr=0.1, …", *(f"…r=torch.optim.AdamW, lr={n}" for n in "12")]
    assert all(name in printed([sheet], 120) for name in names)


def test_what_is_too_wide_is_divided_and_nothing_is_lost():
    numbers = [f"{number}0.00 ± 12.34" for number in range(1, 9)]
    sheet = Sheet("t", ["row", *"abcdefgh"], [["one", *numbers], ["two", *numbers]])
    lines = printed([sheet]).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split("  ") for line in lines if line.startswith("one")]
    assert [cell.strip() for row in rows for cell in row[1:] if cell.strip()] == numbers
    assert len(rows) == 2


def test_a_row_that_begins_like_an_option_is_none_to_latex():
    """After a rule, "[" would begin its width, and "*" belong to the end of the row before."""
    sheet = Sheet("t", ["setting", "n"], [["[ours]", "[1]"], ["*", "2"], ["a*", "3"]])
    lines = latex([sheet]).splitlines()[7:10]
    assert lines == [r"    {}[ours] & [1] \\", r"    {}* & 2 \\", r"    a* & 3 \\"]
