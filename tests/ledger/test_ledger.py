"""Runs of a table are taken into the ledger, and its page is made of the ledger alone."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.disk.rows import read_rows
from pfl.ledger import cells, judge, page, pictures
from pfl.results.files import RunError
from tests.helpers.messages import parts, says

ROOT = Path(__file__).parents[2]
NOTHING = judge.Background({}, {})
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


def written(runs):
    scored = [judge.Scored.of(entry, run) for entry, run in runs]
    return page.page(page.Compared.of(scored, NOTHING), page.Compared([], []), [], {})


def drawn():
    return {file.name: file.read_bytes() for file in Path("docs").glob("*.svg")}


def test_finished_runs_are_kept_and_compared(work, capsys):
    assert keep("--note", "made up") == 0
    assert "FedPer, beta=0.1, seed 1: kept" in capsys.readouterr().out
    kept = cells.read(Path("results/ledger"))
    assert [entry.seed for entry, _ in kept] == [0, 1]
    assert {
        file.name.removesuffix(".gz") for file in Path("results/ledger", kept[0][0].key).iterdir()
    } == {*cells.FILES, "cell.json"}
    _, (row,) = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    assert (row["cell"], row["note"]) == ("FedPer, beta 0.1", "made up")
    for seed, (told, (entry, run)) in enumerate(zip(row["runs"], kept, strict=True)):
        assert (told["seed"], told["partition"]) == (seed, entry.partition)
        assert told["fingerprint"] == run.summary["fingerprint"]
        assert told["environment"]["torch"] == run.environment["packages"]["torch"]
        assert told["last"].keys() > {"acc", "loss", "acc_weighted", "acc_worst10"}
    scores = [run.summary["summary"]["test/personal/acc_weighted/last"] for _, run in kept]
    assert [told["last"]["acc_weighted"] for told in row["runs"]] == pytest.approx(scores, rel=1e-5)
    assert row["ours"] == pytest.approx(sum(scores) / 2, rel=1e-5)
    text = Path("docs/ledger.md").read_text()
    assert f"{100 * row['ours']:.2f}" in text
    assert "![" in text
    first = [file.read_bytes() for file in sorted(Path("docs").iterdir())]
    assert main(["ledger"]) == 0
    assert [file.read_bytes() for file in sorted(Path("docs").iterdir())] == first


def test_how_cells_ran_is_one_line_if_it_is_the_same_and_else_a_column(work):
    keep()
    entry, run = cells.read(Path("results/ledger"))[0]
    own = replace(entry, commit="aa", hardware="one core", note="JPEG images")
    other = replace(own, commit="bb", released=True)
    text = written([(own, run), (other, run)])
    assert "Hardware: one core." in text
    assert "Note: JPEG images." in text
    assert "Commit:" not in text
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["cell", "partition", "seeds", "commit"] in table
    assert ["FedPer, beta 0.1", "own", "0", "aa"] in table
    assert ["FedPer, beta 0.1", "released", "0", "bb"] in table


def test_what_the_runs_of_a_cell_tell_differently_is_told_once_each(work):
    keep()
    (entry, run), (second, later) = cells.read(Path("results/ledger"))
    runs = [(replace(entry, commit="aa", note=""), run), (replace(second, commit="bb"), later)]
    (row,) = judge.rows([judge.Scored.of(*run) for run in runs], NOTHING)
    assert (row.commit, row.note) == ("aa, bb", "")


def test_cells_are_in_the_order_of_their_numbers(work):
    keep()
    entry, run = cells.read(Path("results/ledger"))[0]
    runs = [(replace(entry, column={"J": value}), run) for value in ("100", "0.5", "50", "0.15")]
    found = judge.rows([judge.Scored.of(*run) for run in runs], NOTHING)
    assert [row.cell for row in found] == [f"FedPer, J {n}" for n in ("0.15", "0.5", "50", "100")]
    (_, figure), *_ = pictures.curves(runs)
    assert [panel.get_title() for panel in figure.axes] == ["J 0.15", "J 0.5", "J 50", "J 100"]


def test_what_is_kept_tells_of_each_client_and_partition(work):
    """Long files are compressed, to the same bytes each time, and read as if they were not."""
    keep("--seeds", "0")
    (entry, run), folder = cells.read(Path("results/ledger"))[0], Path("results/ledger")
    assert run.partition["hash"] == entry.partition
    assert run.label_counts.shape == (3, 10)
    assert run.by_client("test/personal/acc", run.evaluated()[-1:]).shape == (3,)
    before = run.clients.columns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "_LONG", 100)
        keep("--seeds", "0")
        packed = {file: file.read_bytes() for file in folder.glob("*/*.gz")}
        keep("--seeds", "0")
    assert {"clients.csv.gz", "partition.json.gz"} <= {file.name for file in packed}
    assert all(file.read_bytes() == content for file, content in packed.items())
    ((_, run),) = cells.read(folder)
    assert run.partition["hash"] == entry.partition
    assert {n: v.tolist() for n, v in run.clients.columns.items()} == {
        n: v.tolist() for n, v in before.items()
    }
    damaged = next(file for file in packed if file.name == "clients.csv.gz")
    damaged.write_bytes(packed[damaged][:50])
    with pytest.raises(RunError, match=parts("clients.csv.gz ~ damaged")):
        _ = cells.read(folder)[0][1].clients


FEDAS = {
    "class_path": "datamodules.PFLlibDirichlet",
    "init_args": {"alpha": 0.1, "min_samples": 40},
}
PFEDVEM = {"class_path": "datamodules.FixedClasses", "init_args": {"released": True}}
SPLIT = {"split_seed": 1, "test_protocol": "pooled", "test_fraction": 0.25}


def test_a_released_partition_is_kept_beside_our_own(work):
    """A cell may have both, so the folder's name tells them apart."""
    for file in Path("runs/tables").glob("*/*/partition.json"):
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | SPLIT | {"partition": FEDAS}))
    keep("--seeds", "0")
    ((entry, _),) = cells.read(Path("results/ledger"))
    assert entry.released
    assert entry.key.endswith("_released-partition")


@pytest.mark.parametrize(
    ("paper", "recipe", "split", "released"),
    [
        ("FedAS", FEDAS, {}, True),
        ("FedAS", FEDAS, {"split_seed": 2}, False),
        ("FedAS", FEDAS, {"test_fraction": 0.2}, False),
        ("FedAS", {**FEDAS, "init_args": {"alpha": 0.1, "min_samples": 1}}, {}, False),
        ("FedAS", {**FEDAS, "class_path": "datamodules.Dirichlet"}, {}, False),
        ("PFAKD", FEDAS, {}, False),
        ("FedSimSup", FEDAS, {}, False),
        ("pFedVEM", PFEDVEM, {"split_seed": 42}, True),
        ("pFedVEM", PFEDVEM, {"split_seed": 43}, False),
        ("pFedVEM", {**PFEDVEM, "init_args": {"released": False}}, {"split_seed": 42}, False),
    ],
)
def test_released_is_what_the_paper_s_own_overlay_deals(paper, recipe, split, released):
    assert cells.is_released(paper, {**SPLIT, "partition": recipe, **split}) is released


def test_runs_with_other_settings_stand_apart(work, capsys):
    """They need a word of what differs, and have no verdict, draw, claim or line in the picture."""
    keep("--seeds", "0")
    rounds = ["--seeds", "0", "--loop.rounds=3", "--model.init_args.net.init_args.hidden=5"]
    assert main(["table", "table.yaml", *rounds]) == 0
    capsys.readouterr()
    assert keep(*rounds) == 2
    assert says(capsys.readouterr().err, "loop.rounds, model.net.hidden are not ~ --departure")
    assert main(["table", "table.yaml", "--seeds", "0", "--data.init_args.max_samples=900"]) == 0
    assert keep("--seeds", "0", "--data.init_args.max_samples=900") == 2
    assert says(capsys.readouterr().err, "data.max_samples is not ~ --departure")
    assert keep("--seeds", "0", "--data", "MNIST") == 2
    assert says(capsys.readouterr().err, "FedPer, beta=0.1: data is not ~ --departure")
    page_before, pictures = Path("docs/ledger.md").read_text(), drawn()
    assert keep(*rounds, "--departure", "Three rounds, five units") == 0
    (first, _), (second, _) = cells.read(Path("results/ledger"))
    assert second.key == f"{first.key}_three-rounds-five-units"
    _, found = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    assert [(row["departure"], row["verdict"]) for row in found[1:]] == [
        ("Three rounds, five units", "-")
    ]
    text = Path("docs/ledger.md").read_text()
    assert (
        text.partition("\nOther settings:\n")[0].strip() == page_before.partition("\n![")[0].strip()
    )
    assert "| FedPer, beta 0.1 | own       |     0 | Three rounds, five units |" in text
    assert drawn() == pictures


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
    assert says(capsys.readouterr().err, f"{file} ~ damaged")


def _json(name, change):
    """Return a change of a JSON file of the ledger's first folder."""

    def changed(folder):
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return changed


def _spreads(line):
    return lambda folder: (folder.parent / "spreads.csv").write_text(line)


HEAD = "paper,table,column,sd,df\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_json("cell.json", lambda c: c.update(seed="x")), "cell.json: seed: expected a whole"),
        (_json("cell.json", lambda c: c.update(reported="x")), "cell.json: reported: expected a n"),
        (_json("cell.json", lambda c: c.update(reported=float("nan"))), "reported: ~ got nan"),
        (_json("cell.json", lambda c: c.pop("metric")), "cell.json: the key 'metric' is missing"),
        (_json("cell.json", lambda c: c.update(seed=9)), "holds the cell of ~ rename or remove"),
        (lambda folder: (folder / "cell.json").unlink(), "holds a run, but no cell.json"),
        (
            _json("summary.json", lambda c: c["summary"].update(dict.fromkeys(c["summary"], None))),
            "summary.json: summary",
        ),
        (
            _json(
                "summary.json",
                lambda c: c["summary"].update(dict.fromkeys(c["summary"], float("nan"))),
            ),
            "summary.json: ~ expected a finite number, got nan",
        ),
        (_spreads("paper,table,column,sdd,df\n"), "spreads.csv has no column 'sd'"),
        (_spreads(f"{HEAD}a,b,c,0.1\n"), "spreads.csv: record 1 has other cells"),
        (_spreads(f"{HEAD}a,b,c,x,18\n"), "spreads.csv: sd and df ~ got 'x' and '18'"),
        (_spreads(f"{HEAD}a,b,c,nan,18\n"), "spreads.csv: sd and df ~ got 'nan' and '18'"),
        (_spreads(f"{HEAD}a,b,c,0.1,-1\n"), "spreads.csv: sd and df ~ got '0.1' and '-1'"),
    ],
)
def test_what_is_damaged_ends_in_one_line_and_writes_nothing(work, capsys, change, message):
    keep()
    shutil.rmtree("docs")
    change(min(Path("results/ledger").glob("*/")))
    capsys.readouterr()
    assert main(["ledger"]) == 2
    assert says(capsys.readouterr().err, message)
    assert not Path("docs").exists()


def test_a_copy_of_a_cell_is_not_counted_as_a_further_seed(work, capsys):
    keep()
    folder = min(Path("results/ledger").glob("*/"))
    shutil.copytree(folder, folder.with_name("copy"))
    assert main(["ledger"]) == 2
    assert says(capsys.readouterr().err, f"copy holds the cell of {folder.name}")


def test_scores_that_end_before_the_run_are_refused(work, capsys):
    keep()
    file = min(Path("results/ledger").glob("*/metrics.csv"))
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    assert main(["ledger"]) == 2
    assert says(capsys.readouterr().err, f"{file} ends after round {len(lines) - 2}")


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
    for name in ("ledger.md", "ledger.json"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()


def test_every_committed_cell_that_is_out_has_a_reason_with_a_command(monkeypatch):
    """And no reason is left of a cell that is in; the files that commands name are there."""
    monkeypatch.chdir(ROOT)
    _, rows = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    key = ("paper", "table", "cell", "partition")
    out = {tuple(row[name] for name in key): row for row in rows if row["verdict"] == "out"}
    with Path("results/ledger/reasons.csv").open(newline="", encoding="utf-8") as file:
        told = {tuple(record[name] for name in key) for record in csv.DictReader(file)}
    assert told == out.keys()
    for row in out.values():
        assert re.search(r"\d", row["reason"]), row["cell"]
        named = re.findall(r"(?:configs|results)/[\w./-]+", row["command"])
        assert named, row["cell"]
        assert [path for path in named if not Path(path).exists()] == []
