"""Estimates: the line through two measured sizes, and what is said of a busy machine."""

from __future__ import annotations

import time

import pytest
import torch

from pfl.tables import estimate
from pfl.tables.estimate import Line, _Watch
from tests.tables.conftest import table, write


def test_a_line_tells_what_a_client_costs_from_what_its_batches_cost():
    """One batch takes 5 s, three take 9: 3 s whatever they are, and 2 s each."""
    line = Line.through(5.0, 9.0)
    assert line == (3.0, 2.0)
    assert line.seconds(clients=2, batches=10) == 26.0


def test_noise_makes_no_cost_negative():
    assert Line.through(5.0, 4.0) == (5.0, 0.0)
    assert Line.through(1.0, 9.0) == (0.0, 4.0)


def watched(load, monkeypatch, work):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    watch = _Watch()
    with watch.on_one_core():
        work()
    return watch.complaints()


def work():
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass


def test_waiting_and_a_long_queue_are_said_to_spoil_an_estimate(monkeypatch):
    monkeypatch.setattr(estimate, "BUSY", 100.0)
    assert watched(1.0, monkeypatch, work) == []
    (complaint,) = watched(9.0, monkeypatch, work)
    assert "9.0 programs wanted 4 cores" in complaint
    monkeypatch.setattr(estimate, "BUSY", 1.2)
    (complaint,) = watched(1.0, monkeypatch, lambda: time.sleep(0.05))
    assert complaint.startswith("THE MACHINE WAS BUSY")


def test_it_is_measured_with_one_op_thread(monkeypatch):
    found = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        watched(0.0, monkeypatch, lambda: found.append(torch.get_num_threads()))
        assert [*found, torch.get_num_threads()] == [1, 2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("_in_a_folder_of_its_own")
def test_each_run_is_told_of_as_it_goes(capsys):
    write(columns=None)
    assert table("--dry-run") == 0
    said = capsys.readouterr()
    for name in ("FedPer", "FedAvg"):
        assert f"{name}, seed 1: missing, " in said.err
    assert "together" in said.out
