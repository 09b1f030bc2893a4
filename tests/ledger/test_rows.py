"""Verdicts by hand, and rows that come back from their file."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pfl.ledger.rows import Row, interval, read, verdict, write

ROW = Row(
    paper="FedAS",
    table="Table 3",
    cell="FedPer, beta 0.1, P 0.2",
    seeds="0 1",
    ours=0.85,
    error=0.01,
    low=0.8,
    high=0.9,
    reported=0.8851,
    spread=None,
    verdict="in",
    by="interval of 2 seeds",
    reason="",
    partitions="abc, def",
    commit="0123456789",
    hardware="a processor, 4 cores",
    note="",
)


def test_the_interval_of_two_seeds_by_hand():
    """Values 1 and 3: mean 2, standard error 1, and t(0.975, 1) = 12.7062."""
    error, low, high = interval([1.0, 3.0])
    assert error == pytest.approx(1)
    assert (low, high) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)
    assert interval([1.0]) is None


@pytest.mark.parametrize(
    ("values", "reported", "spread", "expected"),
    [
        ([0.80], None, None, ("-", "no number is printed")),
        ([0.80], 0.82, None, ("near", "within 2 points")),
        ([0.80], 0.8201, None, ("out", "within 2 points")),
        ([0.80], 0.81, 0.01, ("in", "the paper's spread")),
        ([0.80], 0.8101, 0.01, ("out", "the paper's spread")),
        ([0.79, 0.81], 0.92, 0.5, ("in", "interval of 2 seeds")),
        ([0.79, 0.80, 0.81], 0.83, 0.5, ("out", "interval of 3 seeds")),
    ],
)
def test_verdicts_by_hand(values, reported, spread, expected):
    """Three seeds: standard error 0.01 / sqrt 3, times t(0.975, 2) = 4.303 is 0.0248."""
    assert math.isclose(sum(values) / len(values), 0.80)
    assert verdict(values, reported, spread) == expected


def test_rows_come_back_from_their_file(tmp_path):
    rows = [ROW, replace(ROW, error=None, low=None, high=None, reported=None, cell='a "b", c')]
    (tmp_path / "rows.csv").write_text(write(rows))
    assert read(tmp_path / "rows.csv") == rows


@pytest.mark.parametrize(("old", "new"), [("seeds", "seed"), ("0.85", "many")])
def test_a_damaged_file_is_named(tmp_path, old, new):
    file = tmp_path / "rows.csv"
    file.write_text(write([ROW]).replace(old, new, 1))
    with pytest.raises(ValueError, match=r"rows\.csv is not a table of compared results"):
        read(file)
