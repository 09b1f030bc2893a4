"""Tables to which rounds add rows, and what a checkpoint knows of them."""

from __future__ import annotations

import os

import pytest

from pfl.callbacks.row_file import NO_ROWS, RowFile
from pfl.disk.reading import FileError
from pfl.federation.checkpoint import CheckpointError

ROWS = [
    {"round": 1, "client": 0, "test/acc": 0.5, "trained": True},
    {"round": 1, "client": 1, "test/acc": None, "trained": False},
    {"round": 2, "client": 0, "test/acc": 0.1 + 0.2, "trained": True},
]


@pytest.fixture
def table(tmp_path):
    """Two rounds, of which a checkpoint knows."""
    file = RowFile(tmp_path / "clients.csv")
    file.append(ROWS[:2])
    file.append(ROWS[2:])
    return file


def test_rows_of_later_rounds_are_dropped_and_the_earlier_are_those_of_the_checkpoint(table):
    known, text = table.state(), table.path.read_bytes()
    assert known["rows"] == 3
    table.append([{"round": 3, "client": 0, "test/acc": 1.0, "trained": True}])
    with table.path.open("a") as file:
        file.write("3,1,0.")
    resumed = RowFile(table.path)
    resumed.cut(2, known)
    assert table.path.read_bytes() == text
    assert resumed.state() == known


def test_a_later_column_changes_nothing_that_a_checkpoint_knows_of_earlier_rows(table):
    known = table.state()
    table.append([{"round": 3, "client": 0, "log/size": 7.0}])
    resumed = RowFile(table.path)
    resumed.cut(2, known)
    assert resumed.state() == known


def changed(text):
    return text.replace("0.5", "0.6")


def without_a_row(text):
    return "".join(text.splitlines(keepends=True)[:-1])


def without_rows(text):
    return text.splitlines(keepends=True)[0]


def in_another_order(text):
    header, first, second, third = text.splitlines(keepends=True)
    return header + second + first + third


@pytest.mark.parametrize(
    "change", [changed, without_a_row, without_rows, in_another_order], ids=lambda f: f.__name__
)
def test_other_rows_than_the_checkpoints_are_refused_and_stay(change, table):
    known, other = table.state(), change(table.path.read_text())
    table.path.write_text(other, newline="")
    with pytest.raises(CheckpointError, match=r"clients\.csv .*round 2 .*3"):
        RowFile(table.path).cut(2, known)
    assert table.path.read_text() == other.replace("\r\n", "\n")


def test_without_its_file_a_run_goes_on_with_a_warning_and_counts_anew(table):
    known = table.state()
    table.path.unlink()
    resumed = RowFile(table.path)
    with pytest.warns(UserWarning, match=r"clients\.csv .*missing.* round 2"):
        resumed.cut(2, known)
    resumed.append(ROWS[:1])
    again = RowFile(table.path)
    again.cut(3, resumed.state())
    assert again.state()["rows"] == 1


def test_a_checkpoint_that_knows_of_no_rows_takes_those_that_are_there(table):
    RowFile(table.path).cut(2)
    RowFile(table.path.with_name("none.csv")).cut(2, NO_ROWS)
    assert not table.path.with_name("none.csv").exists()


def test_rows_are_on_the_disk_before_a_checkpoint_tells_of_them(table, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    table.state()
    assert synced == [table.path.stat().st_ino]


def test_a_round_that_is_no_number_is_told_with_the_file(table):
    with table.path.open("a") as file:
        file.write("x,0,1.0,True\n")
    with pytest.raises(FileError, match=r"clients\.csv: round .*'x'"):
        RowFile(table.path).cut(2)


def test_names_and_columns_that_look_like_formulas_are_the_same_after_a_resume(table):
    """A client called =1+1, and a column called so: neither is calculated or counted twice."""
    table.append([{"round": 2, "client": 1, "name": "=1+1", "@SUM": 1.0}])
    known = table.state()
    resumed = RowFile(table.path)
    resumed.cut(2, known)
    resumed.append([{"round": 3, "client": 1, "name": "=1+1", "@SUM": 1.0}])
    lines = table.path.read_text().splitlines()
    assert lines[0].endswith(",name,'@SUM")
    assert lines[-1].endswith(",'=1+1,1.0")
