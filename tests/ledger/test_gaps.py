"""Draws, gaps and claims by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pfl.ledger.cells import Entry
from pfl.ledger.gaps import draws, groups
from pfl.ledger.judge import Background, Scored, rows
from pfl.results.statistics import Deviation

NOTHING = Background({}, {})


def scored(row, ours, reported, *, paper="FedAS", spread=None, partition="p", seed=0, **more):
    entry = Entry(
        paper=paper,
        table="Table 3",
        row=row,
        column={"beta": "0.1"},
        seed=seed,
        metric="test/personal/acc/last",
        reported=reported,
        spread=spread,
        partition=partition,
        commit="c",
        hardware="h",
        note="",
        **more,
    )
    told = {"seed": seed}
    return Scored(entry, ours=ours, last=ours - 0.01, best=ours + 0.01, rounds=0.02, as_row=told)


def test_last_and_best_round_stand_beside_the_criterion():
    """Tests after rounds 4 to 20; those of the second half are 0.6, 0.8, 0.7: sd 0.1."""
    accuracy = np.array([0.1, 0.9, 0.6, 0.8, 0.7])
    run = SimpleNamespace(
        evaluated=lambda metric: np.array([4.0, 8, 12, 16, 20]),
        values=lambda metric, rounds: accuracy,
        scores={"acc": True},
        environment={},
        summary={"summary": {"test/personal/acc/last": 0.75}},
    )
    found = Scored.of(scored("A", 0.5, 0.5).entry, run)
    assert (found.ours, found.last, found.best) == (0.75, 0.7, 0.9)
    assert found.rounds == pytest.approx(0.1)


def test_runs_on_one_partition_are_one_draw():
    """Three methods on p, one of them again on q; with sd 0.02 each half is 0.0594."""
    known = Background({}, {("FedAS", "Table 3", "beta 0.1", "partitions"): Deviation(0.02, 18)})
    runs = [
        scored("A", 0.80, 0.83),
        scored("B", 0.75, 0.79),
        scored("C", 0.90, 0.60),
        scored("A", 0.70, 0.83, partition="q", seed=1),
    ]
    p, q = draws(runs, known)
    assert (len(p.runs), p.difference, p.verdict) == (3, pytest.approx(-0.03), "in")
    assert (len(q.runs), q.difference, q.verdict) == (1, pytest.approx(-0.13), "out")
    assert [draw.verdict for draw in draws(runs, NOTHING)] == ["-", "-"]


def test_gaps_are_between_methods_of_one_partition_and_seed():
    runs = [
        scored("FedPer", 0.80, 0.85),
        scored("FedAS", 0.84, 0.86),
        scored("FedALA", 0.79, 0.83),
        scored("FedAS", 0.85, 0.86, released=True),
        scored("FedAS", 0.83, 0.86, partition="q", seed=2),
    ]
    (group,) = groups(runs, NOTHING)
    assert group.reference.entry.row == "FedPer"
    assert group.title == "FedAS, Table 3, beta 0.1; own partition, seed 0"
    assert group.rank_correlation == pytest.approx(1)


def test_claims_are_counted_by_the_printed_spread():
    """Standard errors of 0.004 of 5 runs: each run has sd 0.00894, and a gap of two Welch's t with
    8 degrees of freedom: 2.306 sqrt(2) 0.00894 is 0.0292."""
    given = {"paper": "pFedVEM", "spread": 0.004}
    runs = [
        scored("A", 0.70, 0.72, **given),
        scored("B", 0.66, 0.70, **given),
        scored("C", 0.68, 0.69, **given),
        scored("D", 0.60, 0.70, **given),
    ]
    (group,) = groups(runs, NOTHING)
    assert group.half(*group.runs[:2]) == pytest.approx(0.02916, abs=1e-4)
    # A-B +4 yes, A-C +2 noise, A-D +10 yes, B-C -2 noise, C-D: the paper has D before C, no.
    # B and D are equal in the paper, which claims nothing.
    assert group.claims() == {"yes": 2, "within noise": 2, "no": 1}


def test_without_a_printed_spread_noise_is_what_is_left_within_the_partitions():
    """Differences -3, -1, 0, 1, 3 points around their median: 1.4826 times their median, 1."""
    apart = [-0.03, -0.01, 0.0, 0.01, 0.03]
    runs = [scored(f"M{n}", 0.5 + left - 0.02, 0.5) for n, left in enumerate(apart)]
    (group,) = groups(runs, NOTHING)
    (spread,) = set(group.noise.values())
    assert spread == (pytest.approx(0.014826, rel=1e-3), 4)


def test_a_cell_of_the_papers_own_partition_is_a_row_of_its_own():
    """It is judged by the spread between seeds, where that is measured."""
    place = ("FedAS", "Table 3", "beta 0.1")
    spreads = {(*place, "partitions"): Deviation(0.02, 18), (*place, "seeds"): Deviation(0.005, 2)}
    runs = [scored("A", 0.80, 0.83), scored("A", 0.80, 0.83, released=True, partition="r")]
    own, released = rows(runs, Background({}, spreads))
    assert (own.partition, own.by, own.verdict) == ("own", "measured between partitions", "in")
    assert (released.partition, released.by) == ("released", "measured between seeds")
    assert released.half == pytest.approx(4.3027 * 2**0.5 * 0.005, abs=1e-5)
    assert (released.verdict, released.verdict_last, released.verdict_best) == ("in", "out", "in")


def test_a_measured_spread_also_judges_two_seeds():
    """sd 0.02 with 18 degrees of freedom, two runs against one: 2.101 sqrt(3 / 2) 0.02 is 0.0515.
    By the two runs alone, 0.80 and 0.82, it would be 12.706 sqrt(3 / 2) 0.0141, which is 0.22."""
    known = Background({}, {("FedAS", "Table 3", "beta 0.1", "partitions"): Deviation(0.02, 18)})
    runs = [scored("A", value, 0.87, partition=str(value)) for value in (0.80, 0.82)]
    (row,) = rows(runs, known)
    assert (row.ours, row.half) == (pytest.approx(0.81), pytest.approx(0.05146, abs=1e-5))
    assert row.verdict == "out"


def test_reasons_belong_to_cells_that_are_out():
    place = ("FedAS", "Table 3", "beta 0.1", "partitions")
    reasons = {("FedAS", "Table 3", "A, beta 0.1", "own"): ("hard", "python -m benchmarks.skew")}
    far, near = scored("A", 0.50, 0.83), scored("A", 0.83, 0.83)
    known = Background(reasons, {place: Deviation(0.02, 18)})
    assert [(r.reason, r.command) for r in rows([far], known)] == [
        ("hard", "python -m benchmarks.skew")
    ]
    assert [(r.reason, r.command) for r in rows([near], known)] == [("", "")]
    (row,) = rows([far], Background({}, known.spreads))
    assert row.reason == "unexplained"
