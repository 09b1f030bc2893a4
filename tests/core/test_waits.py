"""What a user waits for is told in seconds that add up."""

from __future__ import annotations

import time

import pytest

from pfl.core import waits
from pfl.core.waits import Waits


@pytest.fixture
def passes(monkeypatch):
    """Return a function that lets seconds pass."""
    now = 100.0

    def seconds(count):
        nonlocal now
        now += count

    monkeypatch.setattr("pfl.core.waits.time.perf_counter", lambda: now)
    return seconds


def test_topics_add_up_to_the_sum(passes):
    found = Waits(running=1.0)
    passes(2.0)
    found.lap("imports")
    passes(5.0)
    found.split("files", rounds=3.0, tests=1.5)
    assert found.told() == "8.0: imports 3.0, rounds 3.0, tests 1.5, files 0.5"


def test_a_second_run_of_a_command_counts_from_the_end_of_the_first_ones_start(passes):
    with waits.of_command(is_process=False):
        passes(2.0)
        waits.lap("imports")
        first = waits.of_run()
        passes(3.0)
        second = waits.of_run()
        passes(1.0)
        first.lap("rounds")
        second.lap("rounds")
    assert (first.seconds, second.seconds) == (
        {"imports": 2.0, "rounds": 4.0},
        {"rounds": 4.0},
    )
    assert waits.of_run().told() == "0.0"


def test_a_process_knows_how_long_it_has_been_running():
    assert 0.0 <= waits._since_start() < 10**6


def test_what_takes_long_is_said_while_a_command_waits_for_it(capsys):
    for after in (0.01, 60.0):
        with waits.of_command(is_process=False), waits.said(f"reading for {after} s", after):
            time.sleep(0.1)
    with waits.said("nobody waits", 0.01):
        time.sleep(0.1)
    assert capsys.readouterr().err == "reading for 0.01 s ...\n"
