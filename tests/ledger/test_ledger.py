"""Runs of a table are taken into the ledger, and its page is made of the ledger alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pfl.cli.main import main
from pfl.ledger import cells, page, rows

ROOT = Path(__file__).parents[2]
TABLE = """\
caption: "Made up"
paper: FedAS
table: Table 3
metric: test/personal/acc_weighted/last
seeds: [0, 1]
config: base.yaml
columns:
  beta:
    set: data.init_args.partition.init_args.alpha
    reported: param
    values: [0.1]
rows:
  FedPer: {reported: {participation: 0.2}}
"""
BASE = """\
loop: {rounds: 2, accelerator: cpu, progress: false}
model:
  class_path: FedPer
  init_args:
    net: {class_path: MLP, init_args: {hidden: 4}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05}}
data:
  class_path: Digits
  init_args:
    num_clients: 3
    max_samples: 60
    partition: {class_path: Dirichlet, init_args: {alpha: 0.1, min_samples: 3}}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a table of two finished runs."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "table.yaml").write_text(TABLE)
    (folder / "base.yaml").write_text(BASE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["table", "table.yaml"]) == 0
    return folder


@pytest.fixture
def work(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")


def keep(*words):
    return main(["ledger", "--keep", "table.yaml", "--commit", "0123456789", *words])


def test_finished_runs_are_kept_and_compared(work, capsys):
    assert keep("--note", "made up") == 0
    assert "FedPer, beta=0.1, seed 1: kept" in capsys.readouterr().out
    kept = cells.read(Path("results/ledger"))
    assert [entry.seed for entry, _ in kept] == [0, 1]
    assert {file.name for file in Path("results/ledger", kept[0][0].key).iterdir()} == {
        *cells.FILES,
        "cell.json",
    }
    (row,) = rows.read(Path("docs/ledger.csv"))
    assert (row.cell, row.seeds, row.note) == ("FedPer, beta 0.1", "0 1", "made up")
    scores = [run.summary["summary"]["test/personal/acc_weighted/last"] for _, run in kept]
    assert row.ours == pytest.approx(sum(scores) / 2, rel=1e-5)
    text = Path("docs/ledger.md").read_text()
    assert f"{100 * row.ours:.2f}" in text
    assert "![" in text
    first = [file.read_bytes() for file in sorted(Path("docs").iterdir())]
    assert main(["ledger"]) == 0
    assert [file.read_bytes() for file in sorted(Path("docs").iterdir())] == first


def test_a_reason_is_told_for_a_cell_that_is_out(work):
    keep()
    entry, run = cells.read(Path("results/ledger"))[0]
    far = cells.Entry(**{**vars(entry), "reported": 0.0, "spread": 1e-9})
    (row,) = page.rows([(far, run)], {})
    assert (row.verdict, row.reason) == ("out", "unexplained")
    known = {("FedAS", "Table 3", "FedPer, beta 0.1"): "JPEG images"}
    (row,) = page.rows([(far, run)], known)
    assert row.reason == "JPEG images"


def test_a_note_that_is_not_of_all_cells_names_its_own(work):
    keep()
    entry, run = cells.read(Path("results/ledger"))[0]
    one = cells.Entry(**{**vars(entry), "note": "JPEG images"})
    two = cells.Entry(**{**vars(entry), "row": "FedAS", "note": "JPEG images; tested less often"})
    text = page.page(page.rows([(one, run), (two, run)], {}), {})
    assert "Note: JPEG images; tested less often (only FedAS, beta 0.1)." in text


def test_cells_are_in_the_order_of_their_numbers(work):
    keep()
    entry, run = cells.read(Path("results/ledger"))[0]
    runs = [(replace(entry, column={"J": value}), run) for value in ("100", "0.5", "50", "0.15")]
    found = page.rows(runs, {})
    assert [row.cell for row in found] == [f"FedPer, J {n}" for n in ("0.15", "0.5", "50", "100")]
    (_, figure), *_ = page.curves(runs)
    assert [panel.get_title() for panel in figure.axes] == ["J 0.15", "J 0.5", "J 50", "J 100"]


def test_a_commit_that_most_cells_share_needs_no_names(work):
    keep()
    entry, run = cells.read(Path("results/ledger"))[0]

    def commits(*names):
        found = [
            (cells.Entry(**{**vars(entry), "row": f"M{number}", "commit": name}), run)
            for number, name in enumerate(names)
        ]
        return page.page(page.rows(found, {}), {})

    assert "Commit: aa; bb (only M0, beta 0.1)." in commits("bb", "aa", "aa")
    assert "Commit: aa (only M0, beta 0.1); bb (only M1, beta 0.1)." in commits("aa", "bb")


def test_two_seeds_show_the_interval_that_judges_them(work):
    """Of 0.80 and 0.82, with one degree of freedom: 0.81 and 12.706 times 0.01."""
    keep()
    entry, run = cells.read(Path("results/ledger"))[0]
    runs = []
    for seed, value in enumerate((0.80, 0.82)):
        one = cells.Entry(**{**vars(entry), "seed": seed, "reported": 0.9, "spread": None})
        summary = {**run.summary, "summary": {**run.summary["summary"], entry.metric: value}}
        runs.append((one, SimpleNamespace(summary=summary)))
    known = {(entry.paper, entry.table, page.cell_name(entry)): "only of cells that are out"}
    (row,) = page.rows(runs, known)
    text = page.page([row], {})
    assert "interval of 2 seeds, 68.3 to 93.7" in text
    assert (row.verdict, row.reason) == ("in", "")


def test_what_is_not_finished_is_not_kept(work, capsys):
    assert keep("--seeds", "0", "7") == 0
    assert "FedPer, beta=0.1, seed 7: not finished" in capsys.readouterr().out
    assert [entry.seed for entry, _ in cells.read(Path("results/ledger"))] == [0]


def test_a_damaged_folder_is_named(work, capsys):
    keep()
    file = next(Path("results/ledger").glob("*/cell.json"))
    file.write_text("{")
    capsys.readouterr()
    assert main(["ledger"]) == 2
    assert f"{file} is damaged" in capsys.readouterr().err


def test_an_empty_ledger_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["ledger"]) == 2
    assert "pfl ledger --keep TABLE" in capsys.readouterr().err


def test_the_committed_page_is_that_of_the_committed_runs(tmp_path):
    """``pfl ledger`` finds no difference."""
    if not (ROOT / "results" / "ledger").is_dir():
        pytest.skip("no run is committed yet")
    arguments = ["--folder", str(ROOT / "results" / "ledger"), "--out", str(tmp_path)]
    assert main(["ledger", *arguments]) == 0
    for name in ("ledger.md", "ledger.csv"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()
