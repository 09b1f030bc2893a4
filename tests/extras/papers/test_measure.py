"""What a client costs: the line through two measured sizes, a busy machine, what is kept."""

from __future__ import annotations

import time

import torch

from lightning_modules.fedper import FedPer
from lightning_modules.fedsimsup import FedSimSup
from pfl.core.state import nbytes
from pfl.extras.papers import measure
from pfl.extras.papers.measure import CostLine, Stopwatch
from pfl.loop import FederatedLoop
from tests.helpers.toy import blobs, mlp


def test_a_line_tells_what_a_client_costs_from_what_its_batches_cost():
    """One batch takes 5 s, three take 9: 3 s whatever they are, and 2 s each."""
    line = CostLine.through(5.0, 9.0)
    assert line == (3.0, 2.0)
    assert line.seconds(clients=2, batches=10) == 26.0


def test_noise_makes_no_cost_negative():
    assert CostLine.through(5.0, 4.0) == (5.0, 0.0)
    assert CostLine.through(1.0, 9.0) == (0.0, 4.0)


def test_what_waits_for_a_core_costs_its_share_of_the_time():
    assert CostLine(3.0, 2.0).times(0.25) == (0.75, 0.5)
    watch = Stopwatch()
    with watch.on_one_core():
        time.sleep(0.1)
    assert watch.share < 0.5
    with watch.on_one_core():
        work()
    assert 0 < watch.share <= 1


def watched(load, monkeypatch, work):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    watch = Stopwatch()
    with watch.on_one_core():
        work()
    return watch.complaints()


def work():
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass


def test_waiting_and_a_long_queue_are_said_to_spoil_an_estimate(monkeypatch):
    monkeypatch.setattr(measure, "BUSY", 100.0)
    assert watched(1.0, monkeypatch, work) == []
    (complaint,) = watched(9.0, monkeypatch, work)
    assert "9.0 programs wanted 4 cores" in complaint
    monkeypatch.setattr(measure, "BUSY", 1.2)
    (complaint,) = watched(1.0, monkeypatch, lambda: time.sleep(0.05))
    assert complaint.startswith("THE MACHINE WAS BUSY")


def test_without_a_measurement_nothing_is_said():
    assert Stopwatch().complaints() == []


def test_it_is_measured_with_one_op_thread(monkeypatch):
    found = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        watched(0.0, monkeypatch, lambda: found.append(torch.get_num_threads()))
        assert [*found, torch.get_num_threads()] == [1, 2]
    finally:
        torch.set_num_threads(before)


def test_a_model_that_the_server_holds_for_each_client_counts():
    """FedPer's client keeps its head; FedSimSup's a supervisor, and the server a ``net`` for it."""
    kept = {}
    for method in (FedPer(mlp()), FedSimSup(mlp(), mlp(), sup_epochs=1, epochs=1)):
        run = FederatedLoop(rounds=1, progress=False).fit(method, blobs(sizes=(6, 4)))
        kept[type(method)] = measure.bytes_kept(run)
    network = mlp()
    assert kept[FedPer] == nbytes(network.head.state_dict())
    assert 0 <= kept[FedSimSup] - 2 * nbytes(network.state_dict()) < 50
