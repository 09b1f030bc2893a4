"""Runs of a table are taken into the ledger, and its page is made of the ledger alone."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

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
from benchmarks.ledger.runs import Entry, read, scores
from pfl.__main__ import main as pfl
from pfl.cli.config import Experiment
from pfl.cli.parser import make_parser
from pfl.disk.reading import FileError
from pfl.extras.bench.hashed import read_rows
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
        {"seed": seed, "folder": entry.key} for seed, (entry, _) in enumerate(entries)
    ]
    summaries = [RunFolder.read(folder).summary["summary"] for _, folder in entries]
    found = [summary["test/personal/acc_weighted/last"] for summary in summaries]
    assert row["ours"] == pytest.approx(sum(found) / 2, rel=1e-5)
    assert f"{100 * row['ours']:.2f}" in Path("docs/ledger.md").read_text()
    first = [file.read_bytes() for file in sorted(Path("docs").iterdir())]
    assert main([]) == 0
    assert [file.read_bytes() for file in sorted(Path("docs").iterdir())] == first


def test_an_entry_says_when_its_run_ended(work):
    """By the time of its summary; runs that were kept without it have that of their commit."""
    for file in Path("runs/tables").glob("*/*/summary.json"):
        os.utime(file, (1_800_000_000, 1_800_000_000))
    keep("--seeds", "0")
    ((entry, folder),) = kept()
    assert entry.ended == "2027-01-15T08:00+00:00"
    assert read(LEDGER)["ended"].tolist() == [entry.ended]
    content = json.loads((folder / "cell.json").read_text())
    del content["ended"]
    (folder / "cell.json").write_text(json.dumps(content))
    assert read(LEDGER)["ended"].tolist() == [""]
    (LEDGER / "dates.csv").write_text(f"folder,kept\n{folder.name},2026-11-22T02:41+00:00\n")
    assert read(LEDGER)["ended"].tolist() == ["2026-11-22T02:41+00:00"]


def test_last_and_best_round_stand_beside_the_criterion():
    accuracy = np.array([0.1, 0.9, 0.6, 0.8, 0.7])
    run = SimpleNamespace(
        finished=True,
        evaluated=lambda metric: np.array([4.0, 8, 12, 16, 20]),
        values=lambda metric, rounds: accuracy,
        scores={"acc": True},
        environment={},
        summary={"summary": {"test/personal/acc/last": 0.75, "test/pooled/acc/last": 0.75}},
    )
    of_personal = scores(run, "test/personal/acc/last")
    assert of_personal == {"ours": 0.75, "last": 0.7, "best": 0.9}
    accuracy[1] = np.nan
    assert scores(run, "test/personal/acc/last")["best"] == 0.8
    # A maximum over rounds in which some clients were tested is of other clients than the last.
    run.environment = {"evaluated_clients": [0, 1]}
    found = scores(run, "test/personal/acc/last")
    assert found["last"] == 0.7
    assert np.isnan(found["best"])
    assert scores(run, "test/pooled/acc/last")["best"] == 0.8


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
    """They need a word of what differs, and have no verdict, draw, claim or line in the picture."""
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
    before, picture = Path("docs/ledger.md").read_text(), Path("docs/ledger_light.svg").read_text()
    assert keep(*rounds, "--departure", "Three rounds, five units") == 0
    (first, _), (second, _) = kept()
    assert second.key == f"{first.key}_three-rounds-five-units"
    _, found = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    assert [(row["departure"], row["verdict"]) for row in found[1:]] == [
        ("Three rounds, five units", "-")
    ]
    after = Path("docs/ledger.md").read_text()
    assert after.partition("\nOther settings:\n")[0].strip() == before.strip()
    assert "| FedPer, beta 0.1 | own | 0 | Three rounds, five units |" in after
    assert Path("docs/ledger_light.svg").read_text() == picture


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
        (["--rows", "FedPer"], "--rows is allowed only with --keep TABLE"),
        (["--folder", "no"], "there is no run in no: add some with --keep TABLE"),
        (["--keep", "no.yaml", "--commit", "a"], "there is no table file no.yaml"),
        (["--keep", "no.yaml"], "--keep: give the project's commit ~ --commit"),
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


def test_every_committed_cell_that_is_out_has_a_reason_with_a_command(monkeypatch):
    """And no reason is left of a cell that is in; the files that commands name are there."""
    monkeypatch.chdir(ROOT)
    _, rows = read_rows(Path("docs/ledger.json"), "ledger", "cell")
    key = ("paper", "table", "cell", "partition")
    judged = {tuple(row[name] for name in key): row for row in rows if not row["departure"]}
    out = {place for place, row in judged.items() if row["verdict"] == "out"}
    with Path("results/ledger/reasons.csv").open(newline="", encoding="utf-8") as file:
        told = {tuple(record[name] for name in key) for record in csv.DictReader(file)}
    assert out <= told
    assert [place for place in told if judged[place]["verdict"] == "in"] == []
    for row in (judged[place] for place in told):
        assert re.search(r"\d", row["reason"]), row["cell"]
        named = re.findall(r"(?:configs|results)/[\w./-]+", row["command"])
        assert named, row["cell"]
        assert [path for path in named if not Path(path).exists()] == []


@pytest.mark.long
def test_every_kept_run_can_be_repeated():
    """Its configuration is one of the present version, as its page promises."""
    parser = make_parser("fit")
    for file in sorted((ROOT / LEDGER).glob("*/config.yaml")):
        stored = yaml.safe_load(file.read_text())
        read = yaml.safe_load(Experiment.parse(parser, ["--config", str(file)]).text)
        then, now = identity.of_run(stored), identity.of_run(read)
        assert then.items() <= now.items(), file.parent.name
