"""``pfl sweep`` as a user meets it: a grid, a search, failures, early ends, pictures."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import optuna
import pytest
import yaml

from pfl.__main__ import main
from pfl.cli import runs
from pfl.federation.run import Callback
from tests.extras.sweeps.conftest import CONFIG, HIDDEN, LR, METRIC, sweep, write
from tests.helpers.messages import says
from tests.helpers.tables import csv_rows

HYPERBAND = {"type": "hyperband", "min_iter": 1, "eta": 2}


def points(name="s"):
    """The rows of ``points.csv``."""
    return csv_rows(Path("runs", "sweeps", name, "points.csv"))


def study(name="s"):
    return optuna.load_study(study_name=None, storage=f"sqlite:///runs/sweeps/{name}.db")


def fingerprint(folder):
    return json.loads((Path(folder) / "summary.json").read_text())["fingerprint"]


def test_a_grid_runs_every_point_once_and_ends(capsys):
    write({LR: {"values": [0.01, 0.1]}, HIDDEN: {"min": 3, "max": 4}}, project="p", name="n")
    assert sweep() == 0
    said = capsys.readouterr().out
    assert "s.yaml: not used here: project, name" in said
    assert "point 2 of 4: lr=0.01, hidden=4\n" in said
    assert "no picture importance: it needs 8 points with different values" in said
    rows = points()
    assert sorted((row[LR], row[HIDDEN]) for row in rows) == [
        *(("0.01", "3"), ("0.01", "4"), ("0.1", "3"), ("0.1", "4")),
    ]
    values = [float(row["test/personal/acc"]) for row in rows]
    assert values == sorted(values, reverse=True)
    for row in rows:
        last = csv_rows(Path(row["folder"]) / "metrics.csv")[-1]
        assert last["test/personal/acc"] == row["test/personal/acc"]
        config = yaml.safe_load((Path(row["folder"]) / "config.yaml").read_text())
        init_args = config["model"]["init_args"]
        assert init_args["optimizer"]["init_args"]["lr"] == float(row[LR])
        assert init_args["net"]["init_args"]["hidden"] == int(row[HIDDEN])


@pytest.mark.parametrize("split", ["test", "val"])
def test_choosing_by_the_test_data_is_warned_of(split, capsys):
    constant = {"data.init_args.val_fraction": {"value": 0.2}, LR: {"values": [0.1]}}
    write(constant, metric={"name": f"{split}/personal/acc", "goal": "maximize"})
    assert sweep() == 0
    said = capsys.readouterr().out
    assert ("metric test/personal/acc selects on the test data" in said) == (split == "test")


def test_the_command_of_the_best_point_gives_the_same_weights(monkeypatch, capsys):
    write({LR: {"values": [0.01, 0.1]}, "loop.callbacks": {"value": [{"class_path": "WandB"}]}})
    assert sweep("--model.init_args.epochs=2") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    off, *words = shlex.split(line)
    assert words[:4] == ["pfl", "fit", "--config", "c.yaml"]
    assert words[-1] == "--model.init_args.epochs=2"
    monkeypatch.setenv(*off.split("="))
    assert main(words[1:]) == 0
    newest = max(Path("runs").glob("fedper_synthetic/*"), key=lambda path: path.stat().st_mtime)
    assert fingerprint(newest) == fingerprint(points()[0]["folder"])
    # W&B was there, and did nothing: there is no network, and nobody asked.
    assert not list(Path("runs").glob("**/*.wandb"))


def test_a_second_call_runs_nothing_again(monkeypatch, capsys):
    write()
    assert sweep() == 0
    capsys.readouterr()
    monkeypatch.setattr(runs, "fit", lambda *_: pytest.fail("it was run again"))
    assert sweep() == 0
    assert "best: point" in capsys.readouterr().out


# Optuna's own algorithm starts after ten points.
@pytest.mark.long
@pytest.mark.parametrize(("method", "size"), [("random", 4), ("bayes", 12)])
def test_a_search_in_two_parts_is_the_search_in_one(method, size, monkeypatch):
    """A draw depends on the seed and the known points, not on the time or the process."""

    class Fake:
        history = ()

        def __init__(self, reading):
            given = {".".join(item.keys): item.text for item in reading.settings}
            self.summary = {"test/personal/acc": float(given[LR.replace("init_args.", "")]) ** 2}

    monkeypatch.setattr(runs, "fit", lambda reading, _: Fake(reading))
    parameters = {
        LR: {"distribution": "log_uniform_values", "min": 0.01, "max": 1},
        "model.init_args.epochs": {"values": [1, 2]},
    }
    write(parameters, method=method, run_cap=size)
    assert sweep("--trials=2") == sweep() == 0
    assert sweep("--storage=whole.db") == 0
    assert sweep("--storage=other.db", "--seed=1", "--trials=2") == 0
    found = [
        [trial.params["lr"] for trial in optuna.load_study(study_name=None, storage=url).trials]
        for url in ("sqlite:///runs/sweeps/s.db", "sqlite:///whole.db", "sqlite:///other.db")
    ]
    assert found[0] == found[1]
    assert found[0][:2] != found[2]
    assert len(set(found[0])) == size


def test_a_search_without_an_end_is_refused(capsys):
    write({LR: {"min": 0.1, "max": 0.2}}, method="random")
    assert sweep() == 2
    assert says(capsys.readouterr().err, "random ~ --trials N ~ run_cap ~ s.yaml")


# What goes wrong.


@pytest.mark.long
@pytest.mark.parametrize("method", ["grid", "bayes"])
def test_failing_points_are_kept_with_their_reason_and_the_others_go_on(method, capsys):
    write({LR: {"values": [-1.0, 1e30, 0.1]}}, method=method, run_cap=8)
    assert sweep("--loop.rounds=1") == 0
    said = capsys.readouterr()
    rows = {row[LR]: row for row in points()}
    assert (rows["0.1"]["state"], rows["-1.0"]["state"]) == ("done", "failed")
    assert "Invalid learning rate: -1.0" in rows["-1.0"]["reason"]
    assert "not finite" in rows["1e+30"]["reason"]
    assert "point 1 failed: " in said.out or method == "bayes"
    assert "Traceback" not in said.err
    assert "best: point" in said.out
    # A sampler learns that such points are bad.
    assert -math.inf in {trial.value for trial in study().trials}


@pytest.mark.parametrize("method", ["grid", "bayes"])
def test_a_point_that_fails_late_has_no_value(method, monkeypatch):
    """The first of its two rounds was reported."""

    class Failing(Callback):
        def on_round_end(self, run, result):
            if run.round == 2:
                raise ArithmeticError("no more")

    fit = runs.fit
    more = iter([[Failing()], []])
    monkeypatch.setattr(runs, "fit", lambda words, last: fit(words, [*last, *next(more)]))
    write(method=method, run_cap=2)
    assert sweep() == 0
    done, lost = points()
    assert (done["state"], lost["state"], lost["test/personal/acc"]) == ("done", "failed", "")


def test_a_bug_in_a_method_is_shown_where_it_is(monkeypatch, capsys):
    def fit(reading, callbacks):
        if any(one.keys[-1] == "lr" and one.value == 0.1 for one in reading.settings):
            raise RuntimeError("out of memory")
        return fit_as_ever(reading, callbacks)

    fit_as_ever = runs.fit
    monkeypatch.setattr(runs, "fit", fit)
    write()
    assert sweep() == 0
    assert 'raise RuntimeError("out of memory")' in capsys.readouterr().err
    assert points()[-1]["reason"] == "RuntimeError: out of memory"

    monkeypatch.setattr(runs, "fit", fit_as_ever)
    assert sweep() == 0
    assert points()[-1]["state"] == "failed"
    assert "--retry runs them again" in capsys.readouterr().out
    assert sweep("--retry") == 0
    assert [row["state"] for row in points()] == ["done", "done"]


def test_a_metric_that_is_not_a_number(monkeypatch):
    class Fake:
        history = ()

        def __init__(self):
            self.summary = {"test/personal/acc": float("nan")}

    monkeypatch.setattr(runs, "fit", lambda *_: Fake())
    write()
    assert sweep() == 2
    assert {row["reason"] for row in points()} == {"ArithmeticError: test/personal/acc is nan"}


def test_an_unknown_metric_ends_the_sweep_and_names_near_ones(capsys):
    write(metric={"name": "test/personal/accuracy", "goal": "maximize"})
    assert sweep() == 2
    said = capsys.readouterr().err
    assert "there is no metric 'test/personal/accuracy'; did you mean 'test/personal/acc'" in said
    assert len(study().trials) == 1
    # Nothing was found by then: the mended file may use the same storage.
    write(metric={"name": "test/personal/acc/mean_last10", "goal": "maximize"})
    assert sweep() == 0
    row = points()[0]
    summary = json.loads((Path(row["folder"]) / "summary.json").read_text())["summary"]
    name = "test/personal/acc/mean_last10"
    assert float(row[name]) == summary[name]


def test_missing_data_show_before_the_first_point(capsys):
    """No point is stored, so the command can follow."""
    head, tail = CONFIG.replace("Synthetic", "ImageFolder").split(" samples: 200,")
    Path("c.yaml").write_text(head + tail)
    write({LR: {"values": [0.1, 0.2]}, "data.init_args.root": {"value": "nowhere"}})
    assert sweep() == 2
    said = capsys.readouterr()
    assert said.err.startswith("pfl sweep: error: --data.init_args.root: ")
    assert said.err.count("\n") == 1
    assert not study().trials


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.init_args.optimizer.lr=1"], "--model.init_args.optimizer.lr=1: the sweep sets"),
        (["--ckpt_path", "last"], "--ckpt_path: every point of a sweep starts from scratch"),
        (["--trials=0"], "--trials: expected a whole number, at least 1, got 0"),
        (["--storage=x"], "--storage: expected a file that ends in .db, got x"),
        (["--storage=bad.db"], "--storage bad.db: it is no storage of sweeps"),
    ],
)
def test_mistakes_in_the_command_line_show_before_anything_runs(words, message, capsys):
    Path("bad.db").write_text("not a data base, but long enough to look like one" * 20)
    write()
    assert sweep(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("pfl sweep: error: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.long
def test_another_sweep_in_the_same_storage_begins_anew(capsys):
    """Comments and layout may change; the first sweep's points are found again."""
    write()
    assert sweep("--trials=1") == 0
    changes = [
        {"parameters": {LR: {"values": [0.1, 0.3]}}},
        *({"flags": ["--loop.rounds=1"]}, {"flags": ["--seed=1"]}, {"config": "hidden: 8"}),
    ]
    for change in changes:
        write(change.get("parameters"))
        Path("c.yaml").write_text(CONFIG.replace("hidden: 7", change.get("config", "hidden: 7")))
        assert sweep("--trials=1", *change.get("flags", [])) == 0
        assert "point 1 of 1" in capsys.readouterr().out
    Path("c.yaml").write_text("# A configuration.\n" + CONFIG)
    write().write_text("# A grid.\n" + Path("s.yaml").read_text())
    assert sweep() == 0
    said = capsys.readouterr().out
    assert "point 1 of 2" not in said
    assert "point 2 of 2" in said


def test_without_optuna_it_is_said_what_to_install(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep() == 2
    assert "pip install 'pfl-lightning[sweep]'" in capsys.readouterr().err


# Early ends.


def test_points_that_fall_behind_are_stopped():
    """Halving over values 0.3, 0.1, 1e-5 in this order: the last two are worse than the first.

    After one round, a point goes on if it is the best of two, or one of the best half.
    """
    write({LR: {"values": [0.3, 0.001, 1e-5]}}, early_terminate=HYPERBAND)
    assert sweep("--loop.rounds=4", "--loop.checkpoint_every=1") == 0
    states = {row[LR]: row["state"] for row in points()}
    assert states == {"0.3": "done", "0.001": "stopped", "1e-05": "stopped"}
    row = points()[-1]
    assert row["reason"].startswith("after round 1 of 4: ")
    (only,) = csv_rows(Path(row["folder"]) / "metrics.csv")
    assert only["test/personal/acc"] == row["test/personal/acc"]
    # It is an interrupted run, not a finished one, and could be resumed.
    assert not (Path(row["folder"]) / "summary.json").exists()
    assert (Path(row["folder"]) / "checkpoints" / "last.ckpt").exists()


def test_nobody_is_stopped_after_the_last_round():
    write({LR: {"values": [0.3, 1e-5]}}, early_terminate={**HYPERBAND, "min_iter": 2})
    assert sweep("--loop.rounds=2") == 0
    assert [row["state"] for row in points()] == ["done", "done"]


def test_a_target_ends_the_search():
    write({LR: {"values": [0.1, 0.2, 0.3]}}, metric={**METRIC, "target": 0.01})
    assert sweep() == 0
    assert len(points()) == 1


# Pictures.


@pytest.mark.long
def test_pictures(capsys):
    parameters = {
        LR: {"distribution": "log_uniform_values", "min": 0.01, "max": 1},
        HIDDEN: {"values": [3, 20, 30]},
        "model.init_args.epochs": {"min": 1, "max": 3},
        "loop.callbacks": {"value": []},
    }
    write(parameters, method="random", run_cap=9, early_terminate=HYPERBAND)
    assert sweep("--loop.rounds=1", "--trials=9") == 0
    said = capsys.readouterr().out
    for name in ("parallel_coordinates", "importance"):
        for ending in ("png", "svg"):
            file = Path("runs", "sweeps", "s", f"{name}.{ending}")
            assert f"wrote {file}\n" in said
            assert file.stat().st_size > 3000
