"""Estimates: each run is told of as it goes, whatever its data are."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from datamodules import TensorData
from pfl.cli.config import Experiment
from pfl.cli.parser import make_parser
from pfl.extras.papers.measure import CostLine, Rates, Stopwatch
from pfl.extras.papers.sizes import Surveyor
from tests.extras.papers.conftest import table, write


def test_each_run_is_told_of_as_it_goes(capsys):
    write(columns=None)
    assert table("--dry-run") == 0
    said = capsys.readouterr()
    for name in ("FedPer", "FedAvg"):
        assert f"{name}, seed 1: missing, " in said.err
    assert "together" in said.out


def kinds():
    """Arrays of data that are no images, each with the settings that it needs."""
    rng = np.random.default_rng(0)
    x, tokens = rng.normal(size=(60, 5)), rng.integers(0, 9, (60, 7))
    text = {"model.net": "TextNet", "model.net.vocabulary": 9}
    return {
        "numbers": ({"x": x, "y": rng.integers(0, 3, 60)}, {}),
        "regression": ({"x": x, "y": rng.normal(size=(60, 2))}, {}),
        "labels": ({"x": x, "y": rng.integers(0, 2, (60, 4))}, {}),
        "series": ({"x": rng.normal(size=(60, 4, 3)), "y": rng.integers(0, 3, 60)}, {}),
        "text": ({"x": tokens, "y": rng.integers(0, 3, 60)}, text),
    }


def test_every_kind_of_data_has_an_estimate(capsys):
    rows, rng = {}, np.random.default_rng(1).normal
    for name, (arrays, settings) in kinds().items():
        np.savez(f"{name}.npz", **arrays)
        data = {"data": "TensorData", "data.source": f"{name}.npz", "data.num_clients": 3}
        rows[name] = {"set": {**data, "data.partition": "IID", **settings}}
    np.savetxt("t.csv", np.random.default_rng(0).normal(size=(60, 3)), "%g", ",", header="a,b,y")
    Path("t.csv").write_text(Path("t.csv").read_text().removeprefix("# "))
    given = {"data": "TabularData", "data.path": "t.csv", "data.target": "y"}
    more = {"data.task": "regression", "data.num_clients": 3, "data.partition": "IID"}
    rows["table"] = {"set": {**given, **more}}
    sheet = [f"{c},{t},{rng()}" for c in "pq" for t in range(20)]
    Path("s.csv").write_text("\n".join(["who,when,load", *sheet]))
    given = {"data": "TimeSeries", "data.path": "s.csv", "data.target": "load", "data.past": 4}
    more = {"data.client_column": "who", "data.time_column": "when"}
    rows["windows"] = {"set": {**given, **more}}
    Path("w.csv").write_text(
        "\n".join(["a,b,died", *(f"{i},{'xyz'[i % 3]},{i % 2}" for i in range(60))])
    )
    given = {"data": "TabularData", "data.path": "w.csv", "data.target": "died"}
    more = {"data.task": "binary", "data.num_clients": 3, "data.partition": "IID"}
    rows["binary"] = {"set": {**given, **more}}
    write(columns=None, rows=rows)
    assert table("--dry-run") == 0
    said = capsys.readouterr()
    for name in rows:
        assert f"{name}, seed 1: missing, " in said.err
    assert "[1]" not in said.out


def test_each_file_is_read_and_each_once(monkeypatch):
    """Two files of one class, one of them divided in two ways."""
    rng, opened, surveyor = np.random.default_rng(0), [], Surveyor()
    for count in (40, 80):
        np.savez(f"{count}.npz", x=rng.normal(size=(count, 5)), y=rng.integers(0, 3, count))
    catalogue = TensorData.catalogue
    monkeypatch.setattr(
        TensorData, "catalogue", lambda self: opened.append(self.source) or catalogue(self)
    )
    found = []
    for count, clients in ((40, 2), (80, 2), (80, 4)):
        words = ["--model", "Local", "--model.net", "MLP", "--data", "TensorData"]
        words += ["--data.source", f"{count}.npz", "--data.partition", "IID"]
        words += ["--data.num_clients", str(clients)]
        experiment = Experiment.parse(make_parser("fit"), words)
        found.append(surveyor.sizes(SimpleNamespace(experiment=experiment, scale=1.0)).train)
    assert found == [[15, 15], [30, 30], [15] * 4]
    assert opened == ["40.npz", "80.npz"]


def test_an_estimate_that_fails_is_no_success(monkeypatch, capsys):
    """What a configuration or missing data explain is a note; anything else is a fault."""

    def broken(*_):
        raise IndexError("tuple index out of range")

    write(columns=None)
    monkeypatch.setattr("pfl.extras.papers.estimate.measure", broken)
    assert table("--dry-run") == 2
    said = capsys.readouterr()
    assert "[1] IndexError: tuple index out of range" in said.out
    assert "no estimate of FedPer, seed 1; FedAvg, seed 1" in said.err


def test_a_time_is_that_of_a_whole_core(monkeypatch, capsys):
    """1 s for each of 2 rounds of 3 clients, measured with a quarter of a core, is 0.25 s."""
    rates = Rates(CostLine(1.0, 0.0), CostLine(0.0, 0.0), False, 0.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr("pfl.extras.papers.estimate.measure", lambda *_: rates)
    monkeypatch.setattr(
        Stopwatch, "share", property(lambda _: 0.25, lambda *_: None), raising=False
    )
    write(columns=None)
    assert table("--dry-run") == 0
    quarter = _seconds(capsys.readouterr().err)
    monkeypatch.setattr(Stopwatch, "share", property(lambda _: 1.0, lambda *_: None), raising=False)
    assert table("--dry-run") == 0
    assert quarter == pytest.approx(_seconds(capsys.readouterr().err) / 4)


def _seconds(said):
    return float(re.search(r"FedPer, seed 1: missing, ([\d.]+) s", said)[1])
