import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pfl.__main__ import main
from pfl.disk import canonical
from pfl.extras.bench.hashed import hashed
from pfl.verification import portable
from tests.extras.bench.conftest import EPOCHS, LR, bench, task
from tests.helpers.extras import needs
from tests.helpers.messages import parts, says


def verify(folder, *words):
    """Run ``pfl bench verify``; return its exit code, 1 where it ends the process."""
    file, toys = folder / "out" / "leaderboard.json", folder / "toys.yaml"
    try:
        return main(["bench", "verify", str(file), "--task", str(toys), *map(str, words)])
    except SystemExit as ended:
        return ended.code


def changed(folder, change, rehash):
    """Change the row of FedAvg in a leaderboard, with or without its hash."""
    file = folder / "out" / "leaderboard.json"
    content = json.loads(file.read_text())
    row = next(row for row in content["rows"] if row["method"] == "FedAvg")
    change(row)
    if rehash:
        row |= hashed(row)
    file.write_text(canonical.text(content))


def test_a_leaderboard_is_verified(finished, capsys):
    assert verify(finished) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 12
    assert said[-2] == "compared 10 runs: 10 same bits"
    assert said[-1].startswith("then and now: ")


@pytest.mark.parametrize("made", [True, False])
def test_portable_rows_are_verified_as_such(made, copied, monkeypatch):
    """A row that is not portable stands beside one that is."""
    entered = []
    monkeypatch.setattr(portable, "enter", lambda: entered.append(True))

    def change(row):
        for run in row["tuned"]:
            run["environment"]["portable"] = True

    changed(copied, change, rehash=True)
    names = ["FedAvg"] if made else ["FedAvg", "FedAvgP"]
    assert verify(copied, "--row", *names, "--seed", 0) == 0
    assert entered == [True] * made


def test_a_row_that_was_edited_is_refused(copied, capsys):
    changed(copied, lambda row: row["tuned"][0]["last"].update(acc=0.99), rehash=False)
    assert verify(copied) == 2
    assert says(capsys.readouterr().err, "row FedAvg ~ changed")


@pytest.mark.parametrize("which", ["tuned", "default"])
def test_a_better_score_with_a_new_hash_is_found_out(copied, capsys, which):
    changed(copied, lambda row: row[which][1]["best_by_val"].update(acc=0.99), rehash=True)
    assert verify(copied, "--row", "FedAvg") == 1
    out = capsys.readouterr().out
    assert says(out, f"FedAvg, {which}, seed 1: different: off by ~ (best_by_val acc: 0.990000 in")
    assert "compared 4 runs: 3 same bits, 1 different" in out


def test_a_row_without_runs_verifies_nothing(copied, capsys):
    failed = [{"settings": {}, "failed": "so"}] * 2
    none = {"trials": failed, "chosen": None, "tuned": [], "default": []}
    changed(copied, lambda row: row.update(none), rehash=True)
    assert verify(copied, "--row", "FedAvg") == 1
    assert capsys.readouterr().out.startswith("compared no runs: ")


@pytest.mark.parametrize(
    ("change", "told", "code"),
    [
        (lambda run: run.update(fingerprint="0"), "agrees: all scores are equal, and the wei", 0),
        (lambda run: run["last"].update(acc=run["last"]["acc"] + 1e-7), "agrees: off by 1e-07", 0),
        (lambda run: run.update(partition="0"), "different: partition: 0 in the row", 1),
        (lambda run: run["last"].pop("loss"), "different: only one run has last loss", 1),
    ],
)
def test_what_differs_is_told(copied, capsys, change, told, code):
    changed(copied, lambda row: change(row["tuned"][0]), rehash=True)
    assert verify(copied, "--row", "FedAvg", "--seed", 0) == code
    assert f"FedAvg, tuned, seed 0: {told}" in capsys.readouterr().out


def test_another_processor_and_another_source_are_named_and_no_reason(copied, capsys):
    def elsewhere(row):
        row["source"] = "0"
        for run in (*row["tuned"], *row["default"]):
            run["environment"] = {"processor": "Z80", "torch": "1.0"}

    changed(copied, elsewhere, rehash=True)
    assert verify(copied, "--row", "FedAvg", "--seed", 0) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-3:-1][0] == "then: Z80, torch 1.0"
    assert said[-2].startswith("now: ")
    assert said[-1] == "note: the source of FedAvg has changed since"


@needs("tables")
def test_data_that_are_not_here_accuse_nobody(copied, capsys):
    config = copied / "c.yaml"
    data = "class_path: TabularData\n  init_args: {path: gone.csv, target: y}\n"
    text = config.read_text()
    config.write_text(text[: text.index("data:")] + f"data:\n  {data}")
    task(copied, keep=True)
    board = copied / "out" / "leaderboard.json"
    content = json.loads(board.read_text())
    made = bench(copied / "toys.yaml", copied / "out", trials=2)
    for row in content["rows"]:
        row["task"] = made.task_hash
        row |= hashed(row)
    content["about"]["hash"] = made.task_hash
    board.write_text(canonical.text(content))
    assert verify(copied, "--row", "FedAvg") == 3
    assert says(capsys.readouterr().err, "cannot compare without the data ~ gone.csv")


def test_the_radius_of_the_first_seed_is_stored(finished):
    content = json.loads((finished / "out" / "leaderboard.json").read_text())
    (row,) = [row for row in content["rows"] if row["method"] == "FedAvg"]
    assert 0 < row["tuned"][0]["radius"] < 1e-3
    assert "radius" not in row["tuned"][1]


def test_a_radius_of_zero_is_not_stored(copied, monkeypatch):
    """As of IFCA, whose clusters are drawn anew: the move reaches nothing that the run uses."""
    monkeypatch.setattr("pfl.extras.bench.runner.move", lambda net, draw: None)
    made = bench(copied / "toys.yaml", copied / "again")
    final = replace(made._missing(made.reference)[0], seed=0, rounds=1)
    assert made.radius(final, made.outcome(final)) == {}


def settings(key, value):
    def change(row):
        for trial in row["trials"]:
            trial["settings"][key] = value

    return change


def rounds(row):
    for trial in row["trials"]:
        trial["rounds"] = 10**9


RAY = {"class_path": "RayEngine", "init_args": {"address": "127.0.0.1:9"}}
STRANGE = {
    "a module of the folder": (
        settings("model.init_args.net", "evil.Net"),
        "not a dimension",
    ),
    "an address": (settings("loop.engine", RAY), "loop.engine is not a dimension"),
    "a flag that ends": (settings("print_config", ""), "print_config is not a dimension"),
    "a place": (settings("data.path", "/etc/passwd"), "data.path is not a dimension"),
    "rounds without end": (rounds, "1,000,000,000 rounds, but trials ~ at most 80"),
    "epochs without end": (settings(EPOCHS, 10**9), "1000000000 is outside"),
    "a rate": (settings(LR, 1e9), "is outside its range"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_row_of_somebody_else_runs_nothing_but_its_method(case, copied, capsys, monkeypatch):
    change, message = STRANGE[case]
    changed(copied, change, rehash=True)
    monkeypatch.chdir(copied)
    Path("evil.py").write_text("open('ran', 'w')\n")
    assert verify(copied, "--row", "FedAvg", "--seed", 0) == 2
    assert says(capsys.readouterr().err, message)
    assert not Path("ran").exists()


def test_a_method_of_somebody_else_is_not_even_imported(copied, capsys, monkeypatch):
    changed(copied, lambda row: row.update(method="evil.Net"), rehash=True)
    monkeypatch.chdir(copied)
    net = "from lightning_modules import FedAvg\nclass Net(FedAvg): pass\n"
    Path("evil.py").write_text(f"open('ran', 'w')\n{net}")
    assert verify(copied, "--row", "evil.Net") == 2
    assert says(capsys.readouterr().err, "the row evil.Net ~ --trust")
    assert verify(copied, "--seed", 0) == 0
    said = capsys.readouterr()
    assert says(said.err, "left out: evil.Net, ~ --trust")
    assert "FedAvgP, tuned, seed 0: same bits" in said.out
    assert not Path("ran").exists()
    assert verify(copied, "--row", "evil.Net", "--seed", 0, "--trust") == 0
    assert Path("ran").exists()


def test_a_task_is_found_by_its_name_alone(copied, capsys):
    file = copied / "out" / "leaderboard.json"
    content = json.loads(file.read_text())
    content["about"]["name"] = "../../../toys"
    file.write_text(canonical.text(content))
    assert main(["bench", "verify", str(file)]) == 2
    assert says(capsys.readouterr().err, "there is no shipped task ~ give --task FILE")


def test_another_task_is_refused(copied, capsys):
    task(copied, set={"loop.rounds": 5})
    assert verify(copied) == 2
    assert says(capsys.readouterr().err, "task of this leaderboard")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--row", "FedAvgp"], "--row FedAvgp: ~ 'FedAvgP'"),
        (["--row", "FedAvg", "--seed", 5], "--seed 5: the row FedAvg has the seeds [0, 1]"),
    ],
)
def test_wrong_words_are_refused(finished, capsys, words, message):
    assert verify(finished, *words) == 2
    assert re.search(parts(message), capsys.readouterr().err)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.pop("method"), "the row number 1: the key 'method' is missing"),
        (lambda row: row["budget"].update(seeds=0), "budget.seeds: expected ~ at least 1, got 0"),
        (lambda row: row["tuned"].pop(), "tuned: expected runs of the seeds [0, 1], got [0]"),
        (lambda row: row.update(chosen=2), "chosen: expected the number of a trial ~ got 2"),
        (lambda row: row["trials"][1].update(failed="x"), None),
        (lambda row: row["trials"][1].pop("validation"), "trials.1: the key 'validation' is"),
        (lambda row: row["tuned"][0]["last"].update(acc="x"), "tuned.0.last.acc: expected a num"),
        # A number that no float holds.
        (lambda row: row["tuned"][0]["last"].update(acc=10**400), "tuned.0.last.acc: expected"),
    ],
)
def test_a_row_that_lacks_something_is_refused_in_one_line(copied, capsys, change, message):
    changed(copied, lambda row: (row.update(chosen=0), change(row)), rehash=True)
    assert verify(copied, "--row", "FedAvgP", "--seed", 0) == (2 if message else 0)
    assert not message or says(capsys.readouterr().err, f"leaderboard.json ~ {message}")


def test_two_rows_of_a_method_are_refused(copied, capsys):
    """Otherwise one of them would be shown, and the other verified."""
    file = copied / "out" / "leaderboard.json"
    content = json.loads(file.read_text())
    file.write_text(canonical.text({**content, "rows": [*content["rows"], content["rows"][0]]}))
    assert verify(copied) == 2
    assert "leaderboard.json: there are two rows of FedAvg" in capsys.readouterr().err
