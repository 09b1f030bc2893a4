"""Files are written whole or not at all, and never through a link."""

from __future__ import annotations

import csv
import errno
import os
from pathlib import Path

import pytest

from pfl.disk import writing
from pfl.disk.reading import read_csv
from tests.helpers.messages import parts


@pytest.fixture
def outside(tmp_path):
    """A file of the user's, which nothing may touch."""
    file = tmp_path / "outside" / "precious.txt"
    file.parent.mkdir()
    file.write_text("precious")
    return file


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def write(path):
    writing.write(path, "new\n")


def append(path):
    writing.append(path, "new\n")


def change(path):
    os.close(writing.opened(path, os.O_RDWR | os.O_CREAT))


@pytest.mark.parametrize("do", [write, append, change])
@pytest.mark.parametrize("target", ["precious.txt", "none"])
def test_a_link_is_refused_by_name_and_nothing_changes_where_it_leads(do, target, run, outside):
    link = run / "table.csv"
    link.symlink_to(outside.with_name(target))
    with pytest.raises(OSError, match=parts(f"{link} ~ link ~ remove")):
        do(link)
    assert outside.read_text() == "precious"
    assert [*outside.parent.iterdir()] == [outside]
    assert link.is_symlink()


@pytest.mark.parametrize("do", [append, change])
def test_a_link_that_is_made_after_the_look_is_not_followed(do, run, outside, monkeypatch):
    link = run / "table.csv"
    link.symlink_to(outside)
    monkeypatch.setattr(writing, "no_link", lambda path: path)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        do(link)
    assert outside.read_text() == "precious"


def test_a_scratch_file_that_is_made_as_a_link_after_the_look_is_not_followed(
    run, outside, monkeypatch
):
    scratch = run / "scratch"
    scratch.symlink_to(outside)
    monkeypatch.setattr(writing, "_scratch", lambda path: scratch)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: None)
    with pytest.raises(FileExistsError):
        write(run / "table.csv")
    assert outside.read_text() == "precious"


@pytest.mark.parametrize("do", [append, change])
def test_a_second_name_of_a_file_is_a_link_where_it_is_changed_in_place(do, run, outside):
    other = run / "table.csv"
    os.link(outside, other)
    with pytest.raises(OSError, match=parts(f"{other} ~ link")):
        do(other)
    # A new file takes its place; the other name keeps what it had.
    write(other)
    assert (outside.read_text(), other.read_text()) == ("precious", "new\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_refused(run):
    pipe = run / "table.csv"
    os.mkfifo(pipe)
    for do in (write, append, change):
        with pytest.raises(OSError, match=parts(f"{pipe} ~ not a file")):
            do(pipe)


def test_a_folder_is_not_written_as_a_file(run, monkeypatch):
    monkeypatch.chdir(run)
    before = sorted(run.iterdir())
    for path in (run, Path(".")):
        with pytest.raises(OSError, match=f"^{path} is a folder: name a file$"):
            writing.write(path, "text")
    assert sorted(run.iterdir()) == before


def test_a_scratch_file_that_somebody_made_as_a_link_is_not_followed(run, outside):
    link = run / f".table.csv.{os.getpid()}"
    link.symlink_to(outside)
    write(run / "table.csv")
    assert outside.read_text() == "precious"
    assert [path.name for path in run.iterdir()] == ["table.csv"]


def test_a_block_that_fails_leaves_the_file_as_it_was(run):
    file = run / "table.csv"
    write(file)
    with pytest.raises(TypeError), writing.written(file) as stream:
        stream.writelines([b"half", None])
    assert file.read_text() == "new\n"
    assert [*run.iterdir()] == [file]


def test_a_full_disk_leaves_no_part_of_a_line_and_is_told_with_the_file(run, monkeypatch):
    file, real = run / "table.csv", os.write
    write(file)

    def full(descriptor, data):
        if len(data) < 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:3])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=parts(f"No space left ~ '{file}'")):
        writing.append(file, "12345\n")
    assert file.read_text() == "new\n"


def test_only_what_is_left_of_the_named_files_is_removed(run, outside):
    mine = [run / ".table.csv.17", run / ".last.ckpt.99999"]
    others = [
        run / ".notes.txt.17",
        run / ".table.csv.old",
        run / ".table.csv.17.old",
        run / "table.csv.17",
        run / ".17",
    ]
    for file in (*mine, *others):
        file.write_text("half")
    link, folder = run / ".table.csv.18", run / ".table.csv.19"
    link.symlink_to(outside)
    folder.mkdir()
    writing.clear(run, ["table.csv", "last.ckpt"])
    assert {*run.iterdir()} == {*others, link, folder}
    assert outside.read_text() == "precious"


def test_nothing_is_removed_through_a_linked_folder(run, outside):
    precious = outside.with_name(".last.ckpt.17")
    precious.write_text("precious")
    (run / "checkpoints").symlink_to(outside.parent)
    writing.clear(run / "checkpoints", ["last.ckpt"])
    assert precious.read_text() == "precious"


FORMULAS = ["=HYPERLINK(1)", "+1+1", "@SUM(A1)", "-2+3", "\t=1", "'=1", "''", "'+", "-", "=", "'-1"]
PLAIN = ["Basel", "-1", "-0.5", "+3", "1e-3", "", "'", "'s-Hertogenbosch", "a=1", "ü"]


def test_no_text_is_a_formula_of_a_spreadsheet_and_every_text_is_read_back(tmp_path):
    """Excel, LibreOffice and Google Sheets take an apostrophe before a text for a mark of text."""
    texts = [*FORMULAS, *PLAIN]
    file = tmp_path / "t.csv"
    writing.write(file, writing.csv_text([{"name": text, "=1": -0.5} for text in texts]))
    cells = [row[0] for row in csv.reader(file.read_text().splitlines())][1:]
    assert not [cell for cell in cells[: len(FORMULAS)] if cell[0] in "=+-@\t"]
    assert cells[len(FORMULAS) :] == PLAIN
    lines = read_csv(file)
    assert [*lines.columns] == ["name", "=1"]
    assert [*lines["name"]] == texts
    assert {*lines["=1"].astype(float)} == {-0.5}
