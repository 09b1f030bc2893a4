"""Verdicts by hand, and rows in their file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfl.disk.rows import read_rows
from pfl.ledger.rows import LedgerRow, verdict, write
from pfl.results.statistics import Deviation, Estimate, half_width
from pfl.tables.reported import printed

ROW = LedgerRow(
    paper="FedAS",
    table="Table 3",
    cell="FedPer, beta 0.1, P 0.2",
    partition="released",
    metric="test/personal/acc/last",
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
    commit="0123456789",
    hardware="a processor, 4 cores",
    departure="",
    note="",
    runs=[{"seed": 0, "last": {"acc": 0.84000004}}, {"seed": 1, "last": {"acc": 0.5}}],
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
    theirs = replace(printed("FedAS", 0.80, None), spread=Deviation(0.02, 18))
    assert half_width(Estimate.of([0.85]), theirs) == pytest.approx(0.05942, abs=1e-5)
    assert verdict(Estimate.of([0.859]), theirs) == "in"
    assert verdict(Estimate.of([0.860]), theirs) == "out"


def test_rows_are_written_with_six_digits(tmp_path):
    write([ROW, replace(ROW, half=None, cell='a "b", c')], tmp_path / "rows.json")
    _, (first, second) = read_rows(tmp_path / "rows.json", "ledger", "cell")
    assert first["runs"] == [{"seed": 0, "last": {"acc": 0.84}}, {"seed": 1, "last": {"acc": 0.5}}]
    assert (first["half"], second["half"], second["cell"]) == (0.02, None, 'a "b", c')
    assert ROW.seeds == "0 1"
