import json
from pathlib import Path

import pytest

from pfl.disk.reading import FileError
from pfl.extras.bench import pieces
from pfl.extras.bench.bench import Bench
from pfl.extras.bench.forms import check_row
from tests.extras.bench.conftest import LR, bench, rows, run, task
from tests.helpers.messages import says


def again(folder, *words):
    """Repeat the command of the finished benchmark, in the same or another folder."""
    return run(folder / "toys.yaml", "--budget", 2, "--seeds", 2, "--out", folder / "out", *words)


def content(folder):
    return (folder / "out" / "leaderboard.json").read_bytes()


@pytest.mark.long
def test_a_row_holds_choice_budget_and_tests(finished):
    found = rows(finished / "out")
    assert [*found] == ["FedAvg", "FedAvgP", "majority class"]
    row = found["FedAvgP"]
    assert row["budget"] == {"trials": 2, "samples": 180, "seeds": 2}
    assert row["trials"][0]["settings"] == {
        LR: 0.05,
        "model.init_args.epochs": 1,
        "model.init_args.ft_epochs": None,
    }
    assert [one["seed"] for one in row["tuned"]] == [0, 1]
    best = max(row["trials"], key=lambda trial: trial.get("validation", 0))
    assert row["trials"][row["chosen"]] == best
    assert best["validation"] == max(value for _, value in best["curve"])
    first, second = row["tuned"]
    assert first["partition"] != second["partition"]
    assert {"acc", "acc_worst10", "loss"} <= first["best_by_val"].keys()
    assert first["bytes_up"] == first["bytes_down"] > 0
    assert "seconds" not in content(finished).decode()


@pytest.mark.long
def test_the_same_command_gives_the_same_bytes(finished, tmp_path):
    words = ["--budget", 2, "--seeds", 2, "--out", tmp_path]
    assert run(finished / "toys.yaml", *words) == 0
    assert (tmp_path / "leaderboard.json").read_bytes() == content(finished)


def test_finished_pieces_are_not_computed_again(copied, monkeypatch):
    monkeypatch.setattr(Bench, "computed", lambda *given: pytest.fail("computed again"))
    file = copied / "out" / "seconds.json"
    before, seconds = content(copied), file.read_text()
    assert {*json.loads(seconds)} == {"FedAvg", "FedAvgP"}
    file.unlink()
    assert again(copied) == 0
    assert (content(copied), file.read_text()) == (before, seconds)


def test_an_interrupted_benchmark_goes_on_with_equal_rows(copied, capsys):
    """As after a kill: two pieces are missing, and a file of a third was not finished."""
    before = content(copied)
    trial, *_, final = sorted((copied / "out").glob("*s/*.json"))
    trial.unlink()
    final.unlink()
    (copied / "out" / "leaderboard.json").unlink()
    (final.parent / f".{final.name}.99").write_text("{")
    assert again(copied) == 0
    assert content(copied) == before
    assert capsys.readouterr().err.count(", seed ") == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("trial", lambda text: text[:200], "is damaged"),
        ("final", lambda text: text.replace('"last"', '"x"'), "outcome: the key 'last' is missing"),
    ],
)
def test_a_damaged_piece_is_named_with_the_way_out(copied, capsys, kind, change, message):
    file, *_ = sorted((copied / "out" / f"{kind}s").glob("*.json"))
    whole = file.read_text()
    file.write_text(change(whole))
    assert again(copied) == 2
    assert says(capsys.readouterr().err, f"{file} ~ {message} ~ remove it to repeat the run")
    file.unlink()
    before = content(copied)
    assert again(copied) == 0
    assert content(copied) == before


def test_a_folder_that_cannot_be_written_is_named(finished, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = ["--budget", 2, "--seeds", 2, "--out", tmp_path / "file" / "out"]
    assert run(finished / "toys.yaml", *words) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.long
def test_adding_a_method_changes_no_other_row(copied):
    before = rows(copied / "out")
    assert again(copied, "--methods", "examples.my_method.MyMethod") == 0
    after = rows(copied / "out")
    assert after.keys() - before.keys() == {"examples.my_method.MyMethod"}
    assert {name: after[name] for name in before} == before


@pytest.mark.long
def test_rows_of_another_leaderboard_are_taken_over(finished, tmp_path):
    words = [finished / "toys.yaml", "--seeds", 2, "--methods", "Local"]
    file = finished / "out" / "leaderboard.json"
    assert run(*words, "--budget", 2, "--out", tmp_path, "--beside", file) == 0
    assert rows(tmp_path).keys() == rows(finished / "out").keys() | {"Local"}


def test_a_task_may_set_options_of_one_method(tmp_path):
    file = task(tmp_path, methods={"FedAvgP": {"model.init_args.ft_bn": "eval"}})
    made = bench(file, tmp_path / "out")
    plain, tuned = made.contenders
    assert (plain.given, tuned.default.values.model.init_args.ft_bn) == ({}, "eval")
    assert bench(task(tmp_path), tmp_path).task_hash == made.task_hash


def test_a_changed_source_is_another_piece(copied, monkeypatch):
    made = bench(copied / "toys.yaml", copied / "out")
    assert not made.missing()
    (one,) = (c for c in made.contenders if c.name == "FedAvgP")
    one.__dict__["source_hash"] = "another"
    fresh = Bench(made.task, made.contenders, pieces.PieceFolder(made.store.folder), 2, 2)
    assert {piece.contender.name for c in made.contenders for piece in fresh._missing(c)} == {
        "FedAvgP"
    }


@pytest.mark.long
def test_a_trial_that_fails_is_no_choice_and_a_method_without_any_has_no_score(tmp_path, capsys):
    file = task(tmp_path, set={"loop.rounds": 1})
    words = ["--methods", "Ditto", "--budget", 1, "--seeds", 1, "--out", tmp_path / "out"]
    assert run(file, *words) == 0
    row = rows(tmp_path / "out")["Ditto"]
    assert row["chosen"] is None
    assert row["trials"][0]["failed"] == (
        "one round costs 90 processed samples, but the budget is 45"
    )
    assert "failed" in capsys.readouterr().out


@pytest.mark.long
def test_a_method_whose_cost_leaves_it_few_rounds_is_tested_in_equal_rounds_too(tmp_path, capsys):
    """Ditto trains two networks, so the samples of FedAvg's three rounds are enough for one."""
    file = task(tmp_path, set={"loop.rounds": 3})
    words = ["--methods", "Ditto", "--budget", 1, "--seeds", 1, "--out", tmp_path / "out"]
    assert run(file, *words) == 0
    found = rows(tmp_path / "out")
    assert [*filter(lambda name: "equal_rounds" in found[name], found)] == ["Ditto"]
    row = found["Ditto"]
    assert row["trials"][0]["rounds"] == 1
    for short, whole in zip(row["default"], row["equal_rounds"], strict=True):
        assert short["partition"] == whole["partition"]
        assert whole["bytes_up"] == 3 * short["bytes_up"]
    assert "equal" in capsys.readouterr().out
    words = ["verify", tmp_path / "out" / "leaderboard.json", "--task", file, "--row", "Ditto"]
    assert run(*words, "--seed", 0) == 0
    assert "compared 3 runs: 3 same bits" in capsys.readouterr().out
    row["equal_rounds"].pop()
    with pytest.raises(FileError, match="equal_rounds: expected runs of the seeds"):
        check_row(row, "file", trained=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toys.yaml", "--budget", "0"], "--budget: ~ at least 1 ~ 0"),
        (["digit"], "did you mean 'bench/digits'"),
        (["toys.yaml", "--methods", "FedPar"], "FedPar"),
        (["toys.yaml", "--beside", "no.json"], "no leaderboard no.json"),
    ],
)
def test_wrong_words_are_refused(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    task(tmp_path)
    assert run(*words) == 2
    assert says(capsys.readouterr().err, message)
    assert not Path("runs").exists()
