"""Sweeps that are interrupted or killed, and processes that share one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from pfl.__main__ import main
from pfl.cli import runs
from tests.extras.sweeps.conftest import LR, sweep, write
from tests.helpers.locks import locks_fail
from tests.helpers.tables import csv_rows

ROOT = Path(__file__).parents[3]
FOLDER = Path("runs", "sweeps", "s")


def trials():
    return optuna.load_study(study_name=None, storage="sqlite:///runs/sweeps/s.db").trials


def start(*words):
    """Another process that runs the sweep."""
    command = [sys.executable, "-m", "pfl", "sweep", "s.yaml", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def wait_for(what, *processes):
    while not what():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)


@pytest.mark.long
def test_two_processes_share_a_sweep():
    """Each point runs once; who ends first waits for the other, and both show all points.

    Two programs start anew and run six points: some fifteen seconds.
    """
    write({LR: {"values": [0.01 * number for number in range(1, 7)]}})
    processes = [start(), start()]
    for process in processes:
        told, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
        assert told.count(" done\n") == 6
    found = trials()
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 6
    assert sorted(trial.user_attrs["point"] for trial in found) == list(range(6))
    assert len({trial.params["lr"] for trial in found}) == 6


def test_a_file_system_without_locks_is_refused_before_anything_is_stored(monkeypatch, capsys):
    """SQLite has no other protection of its file; a run of its own is trained there."""
    locks_fail(monkeypatch)
    write()
    assert sweep() == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "its file system has no locks, which SQLite needs" in line
    assert not FOLDER.with_suffix(".db").exists()


@pytest.mark.long
def test_a_killed_point_is_run_again_and_goes_on_from_its_checkpoint(capsys):
    """A program starts anew, and two points run for 60 rounds: some fifteen seconds."""
    write()
    process = start(words := "--loop.rounds=60", "--loop.checkpoint_every=1")
    runs = FOLDER / "fedper_synthetic"

    def is_under_way():
        table = list(runs.glob("*/metrics.csv"))
        saved = list(runs.glob("*/checkpoints/last.ckpt"))
        return table and saved and len(table[0].read_text().splitlines()) > 4

    wait_for(is_under_way, process)
    process.kill()
    process.communicate()
    (folder,) = runs.iterdir()
    assert trials()[0].state.name == "RUNNING"

    assert sweep(words, "--loop.checkpoint_every=1") == 0
    first, second = trials()
    assert (first.user_attrs["point"], second.user_attrs["point"]) == (0, 1)
    # The same folder, and as many rows as rounds: nothing was begun anew.
    assert Path(first.user_attrs["folder"]) == folder
    assert len((folder / "metrics.csv").read_text().splitlines()) == 61
    assert sorted(first.intermediate_values) == list(range(1, 61))
    # The seconds of all rounds, not only of those after the kill.
    spent = sum(float(row["time/round"]) for row in csv_rows(folder / "metrics.csv"))
    assert first.user_attrs["seconds"] == pytest.approx(spent)
    told = {row["point"]: float(row["seconds"]) for row in csv_rows(FOLDER / "points.csv")}
    assert told["1"] == pytest.approx(spent)
    found = json.loads((folder / "summary.json").read_text())["fingerprint"]
    capsys.readouterr()
    lr = first.params["lr"]
    assert main(["fit", "--config", "c.yaml", f"--{LR}={lr}", words]) == 0
    score, mark = capsys.readouterr().out.splitlines()
    assert score.startswith("test/personal/acc ")
    assert mark == f"fingerprint {found}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_goes_on(number, monkeypatch, capsys):
    def fit(words, callbacks):
        if len(list(FOLDER.glob("fedper_synthetic/*"))) == 1:
            signal.raise_signal(number)
        return fit_as_ever(words, callbacks)

    fit_as_ever = runs.fit
    monkeypatch.setattr(runs, "fit", fit)
    write()
    assert sweep() == 128 + number
    assert "the same command resumes this sweep" in capsys.readouterr().err
    monkeypatch.setattr(runs, "fit", fit_as_ever)
    assert sweep() == 0
    assert [trial.state.name for trial in trials()] == ["COMPLETE", "COMPLETE"]
    assert [trial.user_attrs["point"] for trial in trials()] == [0, 1]
    assert (FOLDER / "points.csv").read_text().count("done") == 2
    assert len((FOLDER / "points.csv").read_text().splitlines()) == 3
