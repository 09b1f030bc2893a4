"""The files of ``pfl new`` work as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pfl.__main__ import main
from tests.helpers.messages import says

QUICK = ["--config", "quickstart", "--loop.rounds=1", "--loop.progress=false"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", ["method", "data", "net"])
def test_a_file_has_at_most_forty_lines(here, kind, capsys):
    assert main(["new", kind, "MyThing"]) == 0
    assert "wrote my_thing.py" in capsys.readouterr().out
    text = Path("my_thing.py").read_text()
    assert len(text.splitlines()) <= 40
    assert "class MyThing(" in text
    ruff = "ruff check --isolated --select=E,F --line-length=100 my_thing.py"
    assert subprocess.run([sys.executable, "-m", *ruff.split()], check=False).returncode == 0


@pytest.mark.long
def test_a_method_keeps_all_promises(here):
    main(["new", "method", "FreshMethod"])
    assert main(["check", "fresh_method.FreshMethod"]) == 0


def test_a_net_fits(here):
    main(["new", "net", "FreshNet"])
    assert main(["fit", *QUICK, "--model.net", "fresh_net.FreshNet"]) == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, f"{name!r} ~ class name") for name in ("myThing", "class", "My-Thing", "")),
        # ``calendar.Calendar`` would be Python's, and ``class.Class`` is no path.
        ("Calendar", "calendar is a keyword or a module of Python"),
        ("Class", "class is a keyword or a module of Python"),
    ],
)
def test_what_is_no_name_is_refused(here, name, told, capsys):
    assert main(["new", "method", name]) == 2
    assert says(capsys.readouterr().err, told)
    assert not list(Path().iterdir())


def test_nothing_is_overwritten(here, capsys):
    Path("my_thing.py").write_text("mine")
    assert main(["new", "method", "MyThing"]) == 2
    assert says(capsys.readouterr().err, "my_thing.py ~ exists")
    assert Path("my_thing.py").read_text() == "mine"


def test_data_fit(here):
    main(["new", "data", "FreshData"])
    words = ["--data", "fresh_data.FreshData", "--data.num_clients=4", "--data.partition=IID"]
    model = ["--model=FedPer", "--model.net=MLP", "--loop.rounds=1", "--loop.progress=false"]
    assert main(["fit", *words, *model]) == 0
