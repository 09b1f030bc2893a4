"""A set of runs, made once by any free process: runs that write a file, without any training."""

from __future__ import annotations

import io
import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from pfl.campaign import campaign
from pfl.campaign.campaign import Planned, attempt, work
from pfl.cli.explain import UsageError
from pfl.disk.lock import locked

WRONG = {"user": UsageError("no such rate"), "bug": RuntimeError("out of memory\nor so")}


@dataclass(frozen=True)
class Toys:
    """Runs that write their process into a file; those called as in ``WRONG`` fail."""

    folder: Path
    names: tuple[str, ...]

    def missing(self):
        return [
            Planned(name, f"run {name}", self.folder / name, partial(self.make, name))
            for name in self.names
            if not self.file(name).exists()
        ]

    def file(self, name):
        return self.folder / name / "done"

    def make(self, name, callbacks):
        with self.file(name).with_name("tried").open("a") as file:
            file.write("x")
        if name in WRONG:
            raise WRONG[name]
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        self.file(name).write_text(str(os.getpid()))

    def tried(self, name):
        return len(self.file(name).with_name("tried").read_text())


def worked(toys, workers=1):
    """Do all the work; return the reasons of failures, and what was printed."""
    text = io.StringIO()
    console = Console(file=text, width=200)
    recipe = partial(Toys, toys.folder, toys.names)
    return work(toys, console, workers, recipe), text.getvalue()


def test_each_run_is_made_once(tmp_path):
    toys = Toys(tmp_path, ("a", "b"))
    failures, said = worked(toys)
    assert failures == {}
    assert said.count(": done in ") == 2
    assert worked(toys)[0] == {}
    assert [toys.tried(name) for name in "ab"] == [1, 1]


def test_a_failure_is_reported_with_its_reason_and_the_others_are_made(tmp_path):
    """The traceback is shown of what is no error of the user."""
    toys = Toys(tmp_path, ("user", "bug", "file", "a"))
    toys.folder.joinpath("file").write_text("")
    failures, said = worked(toys)
    assert toys.file("a").exists()
    assert failures["user"] == "no such rate"
    assert failures["bug"] == "RuntimeError: out of memory"
    assert str(toys.folder / "file") in failures["file"]
    assert "run user: failed: no such rate" in said
    assert said.count("Traceback") == 1
    assert "raise WRONG[name]" in said
    assert [toys.tried(name) for name in ("user", "bug")] == [1, 1]


def test_a_run_that_another_process_makes_is_left_to_it(tmp_path, monkeypatch):
    """It ends while this process waits for it, after the other run was made."""
    toys = Toys(tmp_path, ("a", "b"))

    def passes(seconds):
        assert toys.file("b").exists()
        toys.file("a").write_text("by the other one")

    monkeypatch.setattr("pfl.campaign.campaign.time.sleep", passes)
    (tmp_path / "a").mkdir()
    with locked(tmp_path / "a"):
        failures, said = worked(toys)
    assert failures == {}
    assert said.count(f"run a: elsewhere: process {os.getpid()} on ") == 1
    assert not toys.file("a").with_name("tried").exists()


def test_what_another_process_has_just_finished_is_not_made_again(tmp_path, monkeypatch):
    """Both are about to make it; the other, a call inside this one, comes first."""
    toys = Toys(tmp_path, ("a",))

    def late(folder):
        monkeypatch.setattr(campaign, "locked", locked)
        assert worked(toys)[0] == {}
        return locked(folder)

    monkeypatch.setattr(campaign, "locked", late)
    (run,) = toys.missing()
    assert attempt(toys, run).state == "done"
    assert toys.tried("a") == 1


@pytest.mark.long
def test_several_processes_share_the_runs(tmp_path):
    toys = Toys(tmp_path, ("user", "a", "b", "c"))
    failures, _ = worked(toys, workers=2)
    assert failures == {"user": "no such rate"}
    assert toys.tried("user") == 1
    made = {toys.file(name).read_text() for name in "abc"}
    assert str(os.getpid()) not in made


@pytest.mark.long
def test_a_killed_process_is_reported_and_its_run_is_missing(tmp_path):
    toys = Toys(tmp_path, ("killed",))
    with pytest.raises(UsageError, match="a worker was killed"):
        worked(toys, workers=2)
    assert [run.name for run in toys.missing()] == ["killed"]
