"""Runs of a table are taken into the ledger, and its page is made of the ledger alone."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from benchmarks import jpeg
from benchmarks.ledger import keep as keeping
from benchmarks.ledger.__main__ import main
from benchmarks.ledger.judge import Ledger
from benchmarks.ledger.keep import FILES, is_released
from benchmarks.ledger.page import write
from benchmarks.ledger.readings import FIELDS, OF_RUN
from benchmarks.ledger.runs import Entry, scores
from benchmarks.ledger.wanted import options_of, wanted
from pfl.__main__ import main as pfl
from pfl.cli.config import Experiment
from pfl.cli.explain import UsageError
from pfl.disk.reading import FileError
from pfl.extras.bench.hashed import read_rows
from pfl.extras.papers.cells import expand
from pfl.extras.papers.plan import plan
from pfl.extras.papers.reader import read as read_table
from pfl.federation import identity
from pfl.results.runs import RunFolder
from tests.helpers.messages import parts, says

ROOT = Path(__file__).parents[2]
LEDGER = Path("results/ledger")
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
        assert pfl(["table", "table.yaml"]) == 0
    return folder


@pytest.fixture
def work(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")


def keep(*words):
    return main(["--keep", "table.yaml", "--commit", "0123456789", *words])


def kept():
    """Return the entries of the ledger and their folders."""
    files = sorted(LEDGER.glob("*/cell.json"))
    return [(Entry.model_validate_json(file.read_bytes()), file.parent) for file in files]


def test_finished_runs_are_kept_and_compared(work, capsys):
    assert keep("--note", "made up") == 0
    assert "FedPer, beta=0.1, seed 1: kept" in capsys.readouterr().out
    entries = kept()
    assert [entry.seed for entry, _ in entries] == [0, 1]
    names = {file.name.removesuffix(".gz") for file in entries[0][1].iterdir()}
    assert names == {*FILES, "cell.json"}
    _, (row,) = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    assert (row["cell"], row["note"]) == ("FedPer, beta 0.1", "made up")
    assert row["runs"] == [
        {"seed": seed, "setting": "", "folder": entry.key}
        for seed, (entry, _) in enumerate(entries)
    ]
    summaries = [RunFolder.read(folder).summary["summary"] for _, folder in entries]
    found = [summary["test/personal/acc_weighted/last"] for summary in summaries]
    assert row["ours"] == pytest.approx(sum(found) / 2, rel=1e-5)
    assert f">{100 * row['ours']:.2f}</td>" in Path("docs/ledger.html").read_text()
    first = [file.read_bytes() for file in sorted(Path("docs").iterdir())]
    assert main([]) == 0
    assert [file.read_bytes() for file in sorted(Path("docs").iterdir())] == first


def test_an_entry_says_when_its_run_ended(work):
    """By the time of its summary."""
    for file in Path("runs/tables").glob("*/*/summary.json"):
        os.utime(file, (1_800_000_000, 1_800_000_000))
    keep("--seeds", "0")
    ((entry, _),) = kept()
    assert entry.ended == "2027-01-15T08:00+00:00"


CURVE = """\
round,test/personal/acc,test/personal/acc_weighted,test/pooled/acc
4,0.1,0.2,0.3
8,0.9,0.5,0.4
12,0.6,0.6,0.5
16,0.8,0.7,0.6
20,0.7,0.4,0.5
"""


def test_a_curve_has_a_number_by_each_criterion_and_average(work):
    """By hand: after round 20, the best of five tests, and what the table asks for."""
    keep("--seeds", "0")
    ((_, folder),) = kept()
    (folder / "metrics.csv").write_text(CURVE)
    _json("summary.json", lambda c: c.update(rounds=20))(folder)
    run = RunFolder.read(folder)
    summary = run.summary["summary"]
    for name, value in (("personal/acc", 0.55), ("personal/acc_weighted", 0.65)):
        summary[f"test/{name}/mean_last10"] = value
    found = scores(run, "test/personal/acc/mean_last10")
    assert found["scores"] == pytest.approx(
        {
            **{("", ""): 0.55, ("", "clients"): 0.7, ("", "samples"): 1.7 / 3},
            **{("last", ""): 0.7, ("last", "clients"): 0.7, ("last", "samples"): 0.4},
            **{("best", ""): 0.9, ("best", "clients"): 0.9, ("best", "samples"): 0.7},
        }
    )
    # 0.6, 0.8 and 0.7 are the tests of rounds 11 to 20.
    assert found["swing"] == pytest.approx(0.1)
    # A maximum over rounds in which some clients were tested is of other clients than the last.
    run.environment["evaluated_clients"] = [0, 1]
    found = scores(run, "test/personal/acc_weighted/mean_last10")
    assert ("best", "") not in found["scores"]
    assert np.isnan(found["swing"])


@pytest.mark.long
def test_what_is_kept_tells_of_each_client_and_partition(work, monkeypatch):
    """Long files are compressed, to the same bytes each time, and read as if they were not."""
    keep("--seeds", "0")
    ((entry, folder),) = kept()
    run = RunFolder.read(folder)
    assert run.partition["hash"] == entry.partition
    assert run.label_counts.shape == (3, 10)
    assert run.by_client("test/personal/acc", run.evaluated()[-1:]).shape == (3,)
    before = run.clients
    monkeypatch.setattr(keeping, "LONG", 100)
    keep("--seeds", "0")
    packed = {file: file.read_bytes() for file in LEDGER.glob("*/*.gz")}
    keep("--seeds", "0")
    assert {"clients.csv.gz", "partition.json.gz"} <= {file.name for file in packed}
    assert all(file.read_bytes() == content for file, content in packed.items())
    run = RunFolder.read(folder)
    assert run.partition["hash"] == entry.partition
    assert run.clients.equals(before)
    damaged = next(file for file in packed if file.name == "clients.csv.gz")
    damaged.write_bytes(packed[damaged][:50])
    with pytest.raises(FileError, match=parts("clients.csv.gz ~ damaged")):
        _ = RunFolder.read(folder).clients


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
    ((entry, _),) = kept()
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
    assert is_released(paper, {**SPLIT, "partition": recipe, **split}) is released


@pytest.mark.long
def test_runs_with_other_settings_stand_apart(work, capsys):
    """They need a word of what differs, and have no verdict, claim or line in the picture."""
    keep("--seeds", "0")
    rounds = ["--seeds", "0", "--loop.rounds=3", "--model.init_args.net.init_args.hidden=5"]
    assert pfl(["table", "table.yaml", *rounds]) == 0
    capsys.readouterr()
    assert keep(*rounds) == 2
    assert says(capsys.readouterr().err, "loop.rounds, model.net.hidden: not as ~ --departure")
    assert pfl(["table", "table.yaml", "--seeds", "0", "--data.init_args.max_samples=900"]) == 0
    assert keep("--seeds", "0", "--data.init_args.max_samples=900") == 2
    assert says(capsys.readouterr().err, "data.max_samples: not as ~ --departure")
    assert keep("--seeds", "0", "--data", "MNIST") == 2
    assert says(capsys.readouterr().err, "FedPer, beta=0.1: data: not as ~ --departure")
    before, picture = (
        Path("docs/ledger.html").read_text(),
        Path("docs/ledger_light.svg").read_text(),
    )
    assert keep(*rounds, "--departure", "Three rounds, five units") == 0
    (first, _), (second, _) = kept()
    assert second.key == f"{first.key}_three-rounds-five-units"
    _, found = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    assert [(row["experiment"], row["verdict"]) for row in found[1:]] == [
        ("Three rounds, five units", "")
    ]
    after, heading = (
        Path("docs/ledger.html").read_text(),
        "<h2>Runs with settings that no reading has</h2>",
    )
    cells = "<h2>Cells of FedAS</h2>"
    assert _section(after, cells) == _section(before, cells) != ""
    assert heading not in before
    assert "Three rounds, five units" in _section(after, heading)
    assert Path("docs/ledger_light.svg").read_text() == picture


def _section(page, heading):
    return page.partition(heading)[2].partition("</section>")[0]


def test_runs_of_another_clone_are_kept_from_its_folder(work, tmp_path, monkeypatch):
    shutil.move("runs", tmp_path / "clone")
    keep("--seeds", "0")
    assert not LEDGER.exists()
    assert keep("--seeds", "0", f"--loop.default_root_dir={tmp_path / 'clone' / 'tables'}") == 0
    assert [entry.seed for entry, _ in kept()] == [0]


def test_a_cell_names_the_set_of_jpeg_files_that_its_run_read(tmp_path):
    jpeg.write([(Image.new("RGB", (4, 4), "red"), 0)], ["red"], tmp_path / "train")
    told = keeping._images("datamodules.ImageFolder", {"root": str(tmp_path)})
    assert told == jpeg.digest(tmp_path) != ""
    assert keeping._images("datamodules.FashionMNIST", {"root": str(tmp_path)}) == ""


def test_what_is_not_finished_is_not_kept(work, capsys):
    assert keep("--seeds", "0", "7") == 0
    assert "FedPer, beta=0.1, seed 7: not finished" in capsys.readouterr().out
    assert [entry.seed for entry, _ in kept()] == [0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no"], "no is allowed only with --keep TABLE"),
        (["--rows", "FedPer"], "--rows is allowed only with --keep TABLE or --run NAME"),
        (["--run", "no", "--commit", "a"], "--run no: choose one of ~ pfakd-decay"),
        (["--run", "pfakd-10", "--seeds", "1"], "--seeds: --run pfakd-10 says this itself"),
        (["--run", "pfakd-10"], "as --commit"),
        (["--folder", "no"], "there is no run in no: add some with --keep TABLE"),
        (["--keep", "no.yaml", "--commit", "a"], "there is no table file no.yaml"),
        (["--keep", "no.yaml"], "give the project's commit ~ --commit"),
    ],
)
def test_wrong_options_are_told_in_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert says(capsys.readouterr().err, message)


def _json(name, change):
    """Return a change of a JSON file of the ledger's first folder."""

    def changed(folder):
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return changed


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_json("cell.json", lambda c: c.update(seed="x")), "cell.json: seed: ~ valid integer"),
        (_json("cell.json", lambda c: c.update(reported=float("inf"))), "reported: ~ finite"),
        (_json("cell.json", lambda c: c.pop("metric")), "cell.json: metric: Field required"),
        (_json("cell.json", lambda c: c.update(more=9)), "cell.json: more: Extra inputs"),
        (_json("cell.json", lambda c: c.update(seed=9)), "has the cell of ~ rename or remove"),
        (lambda folder: (folder / "cell.json").write_text("{"), "cell.json: damaged: ~ JSON"),
        (lambda folder: (folder / "cell.json").unlink(), "has no cell.json, which says of which"),
        (lambda folder: (folder / "summary.json").unlink(), "the run is not finished"),
        (
            _json(
                "summary.json",
                lambda c: c["summary"].update(dict.fromkeys(c["summary"], float("nan"))),
            ),
            "summary.json: ~ expected a finite number, got nan",
        ),
    ],
)
def test_what_is_damaged_ends_in_one_line_and_writes_nothing(work, capsys, change, message):
    keep()
    shutil.rmtree("docs")
    change(min(LEDGER.glob("*/")))
    capsys.readouterr()
    assert main([]) == 2
    assert says(capsys.readouterr().err, message)
    assert not Path("docs").exists()


def test_scores_that_end_before_the_run_are_refused(work, capsys):
    keep()
    file = min(LEDGER.glob("*/metrics.csv"))
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    assert main([]) == 2
    assert says(capsys.readouterr().err, f"{file.parent} ends after round {len(lines) - 2}")


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """The ledger of the committed runs, and all pages with its numbers, written anew."""
    folder = tmp_path_factory.mktemp("committed")
    shutil.copytree(ROOT / "docs" / "methods", folder / "docs" / "methods")
    for name in ("README.md", "docs/results.md"):
        shutil.copy(ROOT / name, folder / name)
    found = Ledger.read(ROOT / "results" / "ledger")
    write(found, folder / "docs")
    return found, folder


@pytest.mark.long
def test_the_committed_pages_are_those_of_the_committed_runs(committed):
    """``python -m benchmarks.ledger`` finds no difference.

    All pages and pictures of all committed runs are made anew: some ten seconds.
    """
    _, committed = committed
    pages = [*committed.glob("**/*.md"), *committed.glob("**/*.json")]
    assert len(pages) > 30
    changed = [
        str(page.relative_to(committed))
        for page in pages
        if page.read_text() != (ROOT / page.relative_to(committed)).read_text()
    ]
    assert changed == []


def test_every_committed_cell_that_is_different_has_a_reason_with_a_command(monkeypatch):
    """And no reason is left of another cell; the files that commands name are there."""
    monkeypatch.chdir(ROOT)
    _, rows = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    key = ("paper", "table", "cell", "partition")
    judged = {tuple(row[name] for name in key): row for row in rows if not row["experiment"]}
    different = {place for place, row in judged.items() if row["verdict"] == "different"}
    with Path("results/ledger/reasons.csv").open(newline="", encoding="utf-8") as file:
        assert {tuple(record[name] for name in key) for record in csv.DictReader(file)} == different
    for row in (judged[place] for place in different):
        assert re.search(r"\d", row["reason"]), row["cell"]
        named = re.findall(r"(?:configs|results)/[\w./-]+", row["command"])
        assert named, row["cell"]
        assert [path for path in named if not Path(path).exists()] == []


def test_each_committed_cell_states_all_it_assumes_and_takes_its_own_metric(committed):
    found, _ = committed
    criteria = {"last": "last", "best_on_test": "best", "mean_last10": "last ten"}
    for row in found.judged:
        assert [*row["assumed"]] == [*FIELDS], row["cell"]
        assert all(one["source"] for one in row["assumed"].values())
        name, _, at = row["metric"].rpartition("/")
        assert row["assumed"]["criterion"]["taken"] == criteria[at], row["cell"]
        if row["metric"].startswith("test/personal/"):
            by = "samples" if name.endswith("_weighted") else "clients"
            assert row["assumed"]["averaging"]["taken"].startswith(by), row["cell"]


def test_each_reading_of_settings_is_of_a_kept_or_an_open_run(committed):
    """What a paper may mean is run, or is one command away."""
    found, _ = committed
    known = {part for text in found.runs["setting"].unique() for part in text.split(", ")}
    known |= {part for one in wanted().values() for part in one.departure.split(", ")}
    known |= {name for paper in found.papers.values() for name in paper.of_column.values()}
    open_ = {
        name
        for paper in found.papers.values()
        for some in (paper.assumed, *paper.where)
        for field, one in some.items()
        if field in OF_RUN
        for name in one.others
    }
    assert open_ - known - {"5 epochs of the head"} == set()


@pytest.mark.long
@pytest.mark.parametrize("name", [*wanted()])
def test_each_open_run_is_one_command(name):
    """Its table, rows, columns and flags make configurations, and its folders are new or kept."""
    one, options = wanted()[name], options_of(name, "")
    table = read_table(one.file)
    planned = plan(table, expand(table, one.rows, one.columns), one.seeds, overrides=options.flags)
    assert len(planned.names) == len(one.rows)
    assert all([*names] == one.seeds for names in planned.names.values())
    identities = [run.identity for run in planned.runs.values()]
    printed = plan(table, expand(table, one.rows, one.columns), one.seeds)
    changed = [
        keeping.other_settings(table.paper, ours, theirs.identity)
        for ours, theirs in zip(identities, printed.runs.values(), strict=True)
    ]
    # It needs a word of what differs exactly if something does.
    assert [bool(keys) for keys in changed] == [bool(one.departure or one.note)] * len(changed)


def test_a_run_that_the_ledger_has_is_not_made_again():
    """Rows and seeds of which something lacks stay; with none there is nothing to make."""
    table = read_table(wanted()["pfakd-seeds"].file)
    folders = {
        (cell.row, seed): folder for cell, seed, folder in wanted()["pfakd-seeds"].runs(table)
    }
    chosen = options_of("pfakd-seeds", "", [folders["PFAKD", 43], folders["PFAKD", 44]])
    assert (chosen.rows, chosen.seeds) == (["FedRep"], [43, 44])
    chosen = options_of("pfakd-seeds", "", [folders["PFAKD", 43], folders["FedRep", 43]])
    assert (chosen.rows, chosen.seeds) == (["PFAKD", "FedRep"], [44])
    with pytest.raises(UsageError, match="all its runs are in the ledger"):
        options_of("pfakd-seeds", "", folders.values())


@pytest.mark.long
def test_every_kept_run_can_be_repeated():
    """Its configuration is one of the present version, as its page promises."""
    for file in sorted((ROOT / LEDGER).glob("*/config.yaml")):
        stored = yaml.safe_load(file.read_text())
        read = yaml.safe_load(Experiment.parse("fit", ["--config", str(file)]).text)
        then, now = identity.of_run(stored), identity.of_run(read)
        assert then.items() <= now.items(), file.parent.name
