"""A table's file: what its cells are made of, and what is refused with the place of the mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pfl.extras.papers import reported
from pfl.extras.papers.cells import expand
from pfl.extras.papers.plan import parse, plan
from pfl.extras.papers.reader import read
from pfl.extras.papers.shorten import part_of
from tests.extras.papers.conftest import CONFIG, LR, RUNS, table, write
from tests.helpers.messages import parts, says

NET = "model.init_args.net"


def cell(*labels, file="t.yaml"):
    """The cell of a row and of an option of each axis."""
    found = [c for c in expand(read(Path(file))) if (c.row, *dict(c.column).values()) == labels]
    (one,) = found
    return one


def resolved(*labels):
    """The parsed configuration of a cell."""
    described = read(Path("t.yaml"))
    return parse(described, cell(*labels)).values


# What cells are made of.


def test_cells_are_all_combinations_row_by_row():
    axis = {"set": LR, "values": [0.1, 0.2]}
    write(columns={"a": axis, "b": {"values": {"x": None, "y": None}}}, rows={"A": None, "B": None})
    found = [(c.row, *dict(c.column).values()) for c in expand(read(Path("t.yaml")))]
    assert found == [(row, a, b) for row in ("A", "B") for a in ("0.1", "0.2") for b in ("x", "y")]
    assert cell("B", "0.2", "x").label == "B, a=0.2, b=x"


def test_later_parts_win_table_columns_row_exceptions():
    """Each of five parts says one number more of its own; who comes last is seen in the result."""
    Path("row.yaml").write_text("loop: {rounds: 3, evaluate_every: 3}\n")
    Path("column.yaml").write_text("loop: {rounds: 2, checkpoint_every: 2, evaluate_every: 2}\n")
    write(
        set={LR: 1, "data.init_args.samples": 101, "data.init_args.batch_size": 11},
        columns={"c": {"values": {"x": {"config": "column.yaml", "set": {LR: 2}}}}},
        rows={
            "a": {"config": "row.yaml", "set": {LR: 3, "data.init_args.batch_size": 13}},
            "b": None,
        },
        cells=[{"where": {"row": "a", "c": "x"}, "set": {LR: 4}, "metric": "val/loss/last"}],
    )
    a, b = resolved("a", "x"), resolved("b", "x")
    assert [v["loop.rounds"] for v in (a, b)] == [3, 2]
    assert [v["loop.evaluate_every"] for v in (a, b)] == [3, 2]
    assert [v["loop.checkpoint_every"] for v in (a, b)] == [2, 2]
    assert [v[LR] for v in (a, b)] == [4, 2]
    assert [v["data.init_args.batch_size"] for v in (a, b)] == [13, 11]
    assert [v["data.init_args.samples"] for v in (a, b)] == [101, 101]
    assert (cell("a", "x").metric, cell("a", "x").at) == ("val/loss", "last")
    assert cell("b", "x").metric == "test/personal/acc"


def test_a_setting_of_the_row_wins_over_what_holds_it_in_a_column():
    """The table sets hidden units, the column the whole network, the row its hidden units again."""
    net = {"class_path": "MLP", "init_args": {"hidden": 5}}
    write(
        set={f"{NET}.init_args.hidden": 3},
        columns={"net": {"values": {"own": {"set": {NET: net}}}}},
        rows={"a": {"set": {f"{NET}.init_args.hidden": 9}}, "b": None},
    )
    assert resolved("a", "own")[f"{NET}.init_args.hidden"] == 9
    assert resolved("b", "own")[f"{NET}.init_args.hidden"] == 5


def test_exceptions_are_for_the_cells_they_name():
    write(
        rows={"a": None, "b": None, "c": None},
        cells=[
            {"where": {"row": ["a", "b"], "rate": 0.1}, "skip": "lost"},
            {"where": {"rate": 0.2}, "set": {"loop.rounds": 9}},
        ],
    )
    assert [c.skip for c in expand(read(Path("t.yaml")))] == ["lost", None] * 2 + [None] * 2
    assert resolved("a", "0.2")["loop.rounds"] == 9
    assert resolved("c", "0.1")["loop.rounds"] == 2


def test_files_are_found_from_the_tables_folder(monkeypatch):
    Path("sub").mkdir()
    Path("sub", "e.yaml").write_text(CONFIG)
    write("sub/t.yaml", config=["../c.yaml", "e.yaml"])
    assert cell("FedPer", "0.1", file="sub/t.yaml").words[:4] == (
        *("--config", "sub/../c.yaml", "--config", "sub/e.yaml"),
    )


def test_a_list_or_a_name_is_short_for_configuration_files():
    write(rows={"a": "c.yaml", "b": ["c.yaml", "c.yaml"], "c": {"config": "c.yaml"}})
    counts = [cell(row, "0.1").words.count("--config") for row in "abc"]
    assert counts == [2, 3, 2]


# Reported numbers.


def test_a_reported_number_is_found_by_what_parts_say_together():
    """FedAS, Table 2: FedAvg-P at beta 0.1 has 27.61 for participation 0.2, 36.42 for 0.4."""
    write(
        paper="FedAS",
        table="Table 2",
        reported={"param": 0.1},
        columns={"P": {"set": LR, "reported": "participation", "values": [0.2, 0.4]}},
        rows={"FedAvg-P": None, "ours": {"reported": {"method": "FedAvg-P"}}, "x": None},
        cells=[{"where": {"row": "x"}, "reported": False}],
    )
    values = [cell(row, p).reported for row in ("FedAvg-P", "ours") for p in ("0.2", "0.4")]
    assert [found.value for found in values] == pytest.approx([0.2761, 0.3642] * 2)
    assert values[0].unit == reported.NumberFormat(100, 2)
    assert cell("x", "0.2").reported is None


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"paper": "FedAS", "method": "FedOops"}, "~ no number ~ method=FedOops, "),
        ({"paper": "FedAS", "table": "Table 2"}, "~ 12 numbers ~ method=FedAvg-P, "),
    ],
)
def test_a_reported_number_that_is_not_the_one_is_refused(selection, message, capsys):
    write(columns=None, rows={"FedAvg-P": None}, reported=selection)
    assert table("--read") == 2
    said = capsys.readouterr().err
    assert says(said, f"pfl table: error: t.yaml: FedAvg-P: reported: {message} ~ reported: false")
    if "table" in selection:
        assert says(said, "differ ~ param, participation;")


# Mistakes, each told in one line with what was given.


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"captions": "x"}, "t.yaml:18: captions: ~ 'caption'"),
        ({"caption": None}, "t.yaml: ~ 'caption' ~ missing"),
        ({"rows": {}}, "rows: expected at least one row"),
        ({"rows": {"a": "cc.yaml"}}, "rows.a.config: ~ cc.yaml ~ 'c.yaml'"),
        ({"config": "nowhere/x.yaml"}, "config: there is no file nowhere/x.yaml\n"),
        ({"metric": "test/personal/acc"}, "metric: test/personal/acc ~ last, "),
        ({"seeds": []}, "seeds: ~ seed ~ []"),
        ({"pictures": ["curve"]}, "pictures: ~ 'curve' ~ 'curves'"),
        ({"scaling": {LR: "x"}}, "number ~ 'x'"),
        ({"reported": {"datasets": 1}}, "reported.datasets: ~ 'data"),
        ({"columns": {"row": {"values": {"x": None}}}}, "columns.row: choose another name"),
        ({"columns": {"a": {"values": [1]}}}, "columns.a: a list of values needs set: the dotted"),
        ({"columns": {"a": {"values": []}}}, "columns.a: expected values: a list with"),
        (
            {"columns": {"a": {"set": LR, "values": [1], "reported": "params"}}},
            "columns.a.reported: ~ paper, table, ",
        ),
        (
            {"columns": {"a": {"set": LR, "values": {"x": None}}}},
            "columns.a: expected values: a list with set, or a mapping",
        ),
        ({"cells": [{"where": {"raw": "a"}}]}, "cells.0.where.raw: ~ 'raw'"),
        ({"cells": [{"where": {"rate": 7}}]}, "cells.0.where.rate: ~ '7' ~ 0.1, 0.2"),
        ({"seed_keys": ["seed", "data.seed"]}, "seed_keys: FedPer, rate=0.1 has no key 'data.se"),
        ({"set": {"loop.round": 1}}, "t.yaml: FedPer, rate=0.1: --loop.round: FederatedLoop has"),
    ],
)
def test_mistakes_in_the_file(keys, message, capsys):
    write(**keys)
    assert table() == 2
    said = capsys.readouterr().err
    assert said.startswith("pfl table: error: t.yaml")
    assert re.search(parts(message), said)
    assert said.count("\n") == 1
    assert not RUNS.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: [", "t.yaml:1: this is not YAML"),
        ("rows: 1\nrows: 2\n", "t.yaml:2: ~ 'rows' ~ twice"),
    ],
)
def test_what_is_no_table_at_all(text, message, capsys):
    Path("t.yaml").write_text(text)
    assert table() == 2
    assert re.search(parts(message), capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "FedPre"], "--rows FedPre: t.yaml has the rows FedPer, FedAvg"),
        (["--columns", "0.3"], "--columns 0.3: t.yaml: choose from rate=0.1, rate=0.2"),
        (["--scale", "0"], "--scale ~ (0, 1] ~ 0"),
        (["--out", "t.txt"], "--out t.txt: use one of .md, .tex, .csv for a table"),
        (["--dry-run", "--out", "t.md"], "--dry-run writes no files: remove --out"),
        (["--seed=3"], "--seed=3: a table has several seeds, such as --seeds 1 2 3"),
        (["--loop.name=x"], "--loop.name=x: pfl table names its runs itself"),
        (["--ckpt_path", "last"], "--ckpt_path: pfl table finds its runs' checkpoints itself"),
        (["--loop.default_root_dir=null"], "t.yaml: FedPer, rate=0.1: ~ loop.default_root_dir"),
        (["--workers=0"], "--workers: ~ at least 1 ~ 0"),
    ],
)
def test_mistakes_in_the_command_line(words, message, capsys):
    write()
    assert table(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("pfl table: error: ")
    assert re.search(parts(message), said)
    assert said.count("\n") == 1
    assert not RUNS.exists()


@pytest.mark.parametrize("key", ["data.init_args.split_seed", "data.split_seed"])
def test_a_key_that_takes_the_seed_is_no_flag(key, capsys):
    write(seed_keys=["seed", "data.init_args.split_seed"])
    assert table(f"--{key}=3") == 2
    said = capsys.readouterr().err
    assert re.fullmatch(parts(f"pfl table: error: --{key}=3: t.yaml ~ seed ~ --seeds\n"), said)


def test_a_file_that_sets_a_key_of_the_seed_keeps_it():
    """A paper's released code has the same clients for all seeds."""
    write(seed_keys=["seed", "data.init_args.split_seed"])
    Path("released.yaml").write_text("seed: 9\ndata: {init_args: {split_seed: 42}}\n")
    described = read(Path("t.yaml"))
    planned = [
        plan(described, expand(described)[:1], [4, 5], overrides=overrides).runs.values()
        for overrides in ([], ["--config", "released.yaml"])
    ]
    splits = [
        [(run.identity["seed"], run.identity["data.split_seed"]) for run in runs]
        for runs in planned
    ]
    assert splits == [[(4, 4), (5, 5)], [(4, 42), (5, 42)]]


def test_a_label_of_two_axes_needs_the_name_of_the_axis(capsys):
    option = {"values": {"1": None, "2": None}}
    write(columns={"a": option, "b": option}, rows={"r": None})
    assert table("--columns", "1") == 2
    assert says(capsys.readouterr().err, "--columns 1: t.yaml: ~ a=1, b=1")
    found = expand(read(Path("t.yaml")), columns=["a=1"])
    assert [dict(c.column) for c in found] == [{"a": "1", "b": "1"}, {"a": "1", "b": "2"}]


# Parts of numbers.


@given(st.integers(1, 10_000), st.integers(1, 100))
@example(100, 7)  # 7.000000000000001 in floating point
def test_a_part_is_whole_and_never_less_than_asked_for(count, percent):
    part = part_of(count, percent / 100)
    assert 1 <= part <= count
    # The smallest whole number that is not below the share, in exact arithmetic.
    assert part == max(1, -(-count * percent // 100))
