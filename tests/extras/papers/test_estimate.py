"""Estimates: one real round of each setting, whatever its data are; each run is told of."""

from __future__ import annotations

import re
from pathlib import Path

from pfl.extras.papers import estimate
from tests.extras.papers.conftest import LR, table, write


def test_one_round_of_one_seed_of_each_setting_is_run(monkeypatch):
    made = []
    run = estimate._round
    monkeypatch.setattr(estimate, "_round", lambda one: made.append(one.label) or run(one))
    write(seeds=[1, 2], columns={"rate": {"set": LR, "values": [0.1, 0.2]}}, rows={"FedPer": None})
    assert table("--dry-run") == 0
    assert made == ["FedPer, rate=0.1, seed 1", "FedPer, rate=0.2, seed 1"]


def test_missing_data_are_a_note(capsys):
    data = {"data": "TensorData", "data.source": "gone.npz", "data.num_clients": 3}
    write(columns=None, rows={"FedPer": {"set": {**data, "data.partition": "IID"}}})
    assert table("--dry-run") == 0
    assert re.search(r"\[1\] .*gone\.npz", " ".join(capsys.readouterr().out.split()))
    assert not Path("runs").exists()


def test_an_estimate_that_fails_is_no_success(monkeypatch, capsys):
    """What a configuration or missing data explain is a note; anything else is a fault."""

    def broken(_):
        raise IndexError("tuple index out of range")

    write(columns=None)
    monkeypatch.setattr(estimate, "_round", broken)
    assert table("--dry-run") == 2
    said = capsys.readouterr()
    assert "[1] IndexError: tuple index out of range" in said.out
    assert "no estimate of FedPer, seed 1; FedAvg, seed 1" in said.err


def test_time_and_bytes_are_those_of_the_rounds_that_are_left(monkeypatch, capsys):
    """Of 6 rounds, tested after the 3rd and the 6th: 6 * 2 s + 2 * 5 s, and 6 * 30 bytes."""
    row = {"time/round": 7.0, "time/evaluate": 5.0, "comm/bytes_down": 10.0, "comm/bytes_up": 20.0}
    monkeypatch.setattr(estimate, "_round", lambda _: row)
    write(columns=None, rows={"FedPer": None})
    assert table("--dry-run", "--loop.rounds=6", "--loop.evaluate_every=3") == 0
    assert "FedPer, seed 1: missing, 22.0 s, 180 bytes" in capsys.readouterr().err
