"""Verdicts by hand, and rows that come back from their file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfl.ledger.rows import LedgerRow, read, verdict, write
from pfl.results.statistics import Estimate, Spread, half_width
from pfl.tables.reported import printed

ROW = LedgerRow(
    paper="FedAS",
    table="Table 3",
    cell="FedPer, beta 0.1, P 0.2",
    partition="released",
    metric="test/personal/acc/last",
    seeds="0 1",
    ours=0.85,
    last=0.84,
    best=0.85,
    rounds=0.01,
    reported=0.8851,
    spread=None,
    half=0.02,
    by="measured between partitions",
    verdict="out",
    verdict_last="out",
    verdict_best="out",
    reason="unexplained",
    command="",
    partitions="abc, def",
    commit="0123456789",
    hardware="a processor, 4 cores",
    note="",
)


@pytest.mark.parametrize(
    ("values", "paper", "spread", "expected"),
    [
        # 2.776 sqrt(6) times 0.01 is 0.068.
        ([0.667], "pFedVEM", 0.01, "in"),
        ([0.669], "pFedVEM", 0.01, "out"),
        # 4.303 sqrt(4 / 3) times 0.01 is 0.0497.
        ([0.649], "FedSimSup", 0.01, "in"),
        ([0.651], "FedSimSup", 0.01, "out"),
        ([0.601], "FedAS", None, "-"),
        # Two seeds and a paper without a spread: 12.706 sqrt(3 / 2) 0.0141 is 0.22.
        ([0.79, 0.81], "FedAS", None, "in"),
        ([0.82, 0.84], "FedAS", None, "out"),
    ],
)
def test_verdicts_by_hand(values, paper, spread, expected):
    assert verdict(Estimate.of(values), printed(paper, 0.60, spread)) == expected


def test_a_cell_without_a_printed_number_has_no_verdict():
    assert verdict(Estimate.of([0.5]), None) == "-"
    assert half_width(Estimate.of([0.5]), None) is None


def test_a_measured_spread_judges_what_a_paper_prints_without_one():
    """sd 0.02 with 18 degrees of freedom, one run against one: 2.101 sqrt(2) 0.02 is 0.0594."""
    theirs = replace(printed("FedAS", 0.80, None), spread=Spread(0.02, 18))
    assert half_width(Estimate.of([0.85]), theirs) == pytest.approx(0.05942, abs=1e-5)
    assert verdict(Estimate.of([0.859]), theirs) == "in"
    assert verdict(Estimate.of([0.860]), theirs) == "out"


def test_rows_come_back_from_their_file(tmp_path):
    rows = [ROW, replace(ROW, half=None, reported=None, cell='a "b", c')]
    (tmp_path / "rows.csv").write_text(write(rows))
    assert read(tmp_path / "rows.csv") == rows


@pytest.mark.parametrize(("old", "new"), [("seeds", "seed"), ("0.85", "many")])
def test_a_damaged_file_is_named(tmp_path, old, new):
    file = tmp_path / "rows.csv"
    file.write_text(write([ROW]).replace(old, new, 1))
    with pytest.raises(ValueError, match=r"rows\.csv is not a table of compared results"):
        read(file)
