import json
import re

import pytest

from pfl.__main__ import main
from pfl.disk import canonical
from pfl.disk.rows import hashed
from tests.extras.bench.conftest import task
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
    assert "verified: 10 of 10 fingerprints equal" in capsys.readouterr().out


def test_one_seed_of_one_row_is_verified(finished, capsys):
    assert verify(finished, "--row", "FedAvgP", "--seed", 1) == 0
    said = capsys.readouterr()
    assert said.out == "verified: 2 of 2 fingerprints equal\n"
    assert said.err == "FedAvgP, tuned, seed 1: equal\nFedAvgP, default, seed 1: equal\n"


def test_a_row_that_was_edited_is_refused(copied, capsys):
    changed(copied, lambda row: row["tuned"][0]["last"].update(acc=0.99), rehash=False)
    assert verify(copied) == 2
    assert says(capsys.readouterr().err, "row FedAvg ~ changed")


@pytest.mark.parametrize("which", ["tuned", "default"])
def test_a_better_score_with_a_new_hash_is_found_out(copied, capsys, which):
    changed(copied, lambda row: row[which][1]["best_by_val"].update(acc=0.99), rehash=True)
    assert verify(copied, "--row", "FedAvg") == 1
    out = capsys.readouterr().out
    assert out.startswith(f"different: 1 of 4 runs\nFedAvg, {which}, seed 1: best_by_val acc: 0.99")


def test_a_row_without_runs_verifies_nothing(copied, capsys):
    failed = [{"settings": {}, "failed": "so"}] * 2
    none = {"trials": failed, "chosen": None, "tuned": [], "default": []}
    changed(copied, lambda row: row.update(none), rehash=True)
    assert verify(copied, "--row", "FedAvg") == 1
    assert capsys.readouterr().out.startswith("nothing to verify: ")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: run.update(fingerprint="0"), "verified: 3 of 4 fingerprints equal, the"),
        (lambda run: run.update(partition="0"), "partition: 0 in the row"),
        (lambda run: run["last"].pop("loss"), "only one run has last loss"),
    ],
)
def test_what_differs_is_told(copied, capsys, change, told):
    changed(copied, lambda row: change(row["tuned"][0]), rehash=True)
    code = verify(copied, "--row", "FedAvg")
    out = capsys.readouterr().out
    assert told in out
    assert code == (0 if "rounding: scores within 1e-06" in out else 1)


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
        (lambda row: row.pop("budget"), "the row FedAvg: the key 'budget' is missing"),
        (lambda row: row["budget"].update(seeds=0), "budget.seeds: expected ~ at least 1, got 0"),
        (lambda row: row.pop("tuned"), "the row FedAvg: the key 'tuned' is missing"),
        (lambda row: row["tuned"].pop(), "tuned: expected runs of the seeds [0, 1], got [0]"),
        (lambda row: row["default"].pop(), "default: expected runs of the seeds [0, 1], got [0]"),
        (lambda row: row.update(chosen=2), "chosen: expected the number of a trial ~ got 2"),
        (lambda row: row["trials"][1].update(failed="x"), None),
        (lambda row: row["trials"][1].pop("validation"), "trials.1: the key 'validation' is"),
        (lambda row: row["tuned"][0]["last"].update(acc="x"), "tuned.0.last.acc: expected a num"),
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


def test_a_score_that_is_not_finite_is_refused(copied, capsys):
    file = copied / "out" / "leaderboard.json"
    file.write_text(re.sub('"acc": [^,]+,', '"acc": NaN,', file.read_text()))
    assert verify(copied) == 2
    assert "holds a number that is not finite" in capsys.readouterr().err


def test_a_score_that_no_float_holds_is_refused_in_one_line(copied, capsys):
    changed(copied, lambda row: row["tuned"][0]["last"].update(acc=10**400), rehash=True)
    assert verify(copied, "--row", "FedAvg") == 2
    assert says(capsys.readouterr().err, "the row FedAvg: tuned.0.last.acc: expected a number")


def test_a_leaderboard_without_its_score_is_refused(copied, capsys):
    file = copied / "out" / "leaderboard.json"
    content = json.loads(file.read_text())
    del content["about"]["score"]
    file.write_text(canonical.text(content))
    assert verify(copied) == 2
    assert "leaderboard.json: about: the key 'score' is missing" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", "[]"])
def test_a_file_that_is_no_leaderboard_is_refused(tmp_path, capsys, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "leaderboard.json").write_text(text)
    task(tmp_path)
    assert verify(tmp_path) == 2
    assert "leaderboard" in capsys.readouterr().err
