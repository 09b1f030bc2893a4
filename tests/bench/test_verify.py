import json
import re

import pytest

from pfl.__main__ import main
from pfl.disk.rows import hashed
from tests.bench.conftest import task
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
    file.write_text(json.dumps(content))


def test_a_leaderboard_is_verified(finished, capsys):
    assert verify(finished) == 0
    assert "verified: 6 of 6 fingerprints equal" in capsys.readouterr().out


def test_one_run_of_one_row_is_verified(finished, capsys):
    assert verify(finished, "--row", "FedAvgP", "--seed", 1) == 0
    assert capsys.readouterr().out == "verified: 1 of 1 fingerprints equal\n"


def test_a_row_that_was_edited_is_refused(copied, capsys):
    changed(copied, lambda row: row["tuned"][0]["last"].update(acc=0.99), rehash=False)
    assert verify(copied) == 2
    assert says(capsys.readouterr().err, "row FedAvg ~ changed")


def test_a_better_score_with_a_new_hash_is_found_out(copied, capsys):
    changed(copied, lambda row: row["tuned"][1]["best_by_val"].update(acc=0.99), rehash=True)
    assert verify(copied, "--row", "FedAvg") == 1
    out = capsys.readouterr().out
    assert out.startswith("different: 1 of 2 runs\nFedAvg, seed 1: best_by_val acc: 0.99")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: run.update(fingerprint="0"), "verified: 1 of 2 fingerprints equal, the"),
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


@pytest.mark.parametrize("text", ["", "{}", "[]"])
def test_a_file_that_is_no_leaderboard_is_refused(tmp_path, capsys, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "leaderboard.json").write_text(text)
    task(tmp_path)
    assert verify(tmp_path) == 2
    assert "leaderboard" in capsys.readouterr().err
