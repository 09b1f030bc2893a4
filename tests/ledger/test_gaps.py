"""Draws, gaps and claims by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pfl.ledger.cells import Entry
from pfl.ledger.gaps import draws, groups
from pfl.ledger.judge import Background, Scored, between_seeds, rows
from pfl.ledger.page import Compared, page
from pfl.results.statistics import Deviation

NOTHING = Background({}, {})
NONE = Compared([], [])


def scored(
    row, ours, reported, *, paper="FedAS", spread=None, partition="p", seed=0, rounds=None, **more
):
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
    return Scored(entry, ours=ours, last=ours - 0.01, best=ours + 0.01, rounds=rounds, as_row=told)


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
    assert found.rounds == (pytest.approx(0.1), 2)
    accuracy[1] = np.nan
    assert Scored.of(scored("A", 0.5, 0.5).entry, run).best == 0.8
    # A maximum over rounds in which some clients were tested is of other clients than the last.
    run.environment = {"evaluated_clients": [0, 1]}
    found = Scored.of(scored("A", 0.5, 0.5).entry, run)
    assert (found.last, found.best, found.rounds) == (0.7, None, None)
    (row,) = rows([found], NOTHING)
    assert (row.last, row.best, row.rounds, row.verdict_best) == (0.7, None, None, "-")


def test_runs_on_one_partition_are_one_draw():
    """Three methods on p, of which A has two seeds, one of them again on q; with sd 0.02 and 18
    degrees of freedom half of a run's interval is 0.0594, and of A's mean 0.0515."""
    known = Background({}, {("FedAS", "Table 3", "beta 0.1"): Deviation(0.02, 18)})
    runs = [
        scored("A", 0.79, 0.83),
        scored("A", 0.81, 0.83, seed=1),
        scored("B", 0.75, 0.79),
        scored("C", 0.90, 0.60),
        scored("A", 0.70, 0.83, partition="q", seed=1),
    ]
    p, q = draws(runs, known)
    assert (len(p.runs), p.difference, p.verdict) == (4, pytest.approx(-0.03), "in")
    assert p.half == pytest.approx(0.0594, abs=1e-4)
    assert (len(q.runs), q.difference, q.verdict) == (1, pytest.approx(-0.13), "out")
    assert p.column == q.column == ("FedAS", "Table 3", "beta 0.1")
    assert [draw.verdict for draw in draws(runs, NOTHING)] == ["-", "-"]
    (alone,) = draws(runs[:2], known)
    assert alone.half == pytest.approx(0.0515, abs=1e-4)
    (close,) = draws(runs[2:3], known)
    assert abs(close.difference) > 0.04  # by a rounding error
    assert replace(close, half=0.04).verdict == "in"


@pytest.mark.parametrize(
    ("sd", "ours", "told"),
    [
        (0.02, 0.79, "1 agree with their papers and 0 do not.\n"),
        (0.06, 0.79, "0 do not. Of those that agree, 1 has an interval wider than ±10 points.\n"),
        (0.06, 0.50, "0 agree with their papers and 1 do not.\n"),
    ],
)
def test_the_page_says_how_many_agree_within_wide_intervals(sd, ours, told):
    """With 18 degrees of freedom half an interval is 2.97 times the deviation: 0.06 and 0.18."""
    known = Background({}, {("FedAS", "Table 3", "beta 0.1"): Deviation(sd, 18)})
    runs = [scored("A", ours, 0.83)]
    compared = Compared.of(runs, known)
    assert told in page(compared, NONE, draws(runs, known), {})


def test_runs_with_other_settings_are_compared_with_each_other_alone():
    apart = {"released": True, "partition": "r", "departure": "one epoch"}
    runs = [scored("A", 0.80 + 0.02 * seed, 0.81, released=True, seed=seed) for seed in (0, 1)]
    others = [
        *(scored("A", 0.60 + 0.20 * seed, 0.81, seed=seed, **apart) for seed in (0, 1)),
        scored("B", 0.50, 0.71, **apart),
        scored("B", 0.55, 0.71, **(apart | {"departure": "two epochs"})),
    ]
    known = Background({}, {}, seeds=between_seeds(runs))
    of_tables, departed = Compared.of(runs, known), Compared.of(others, known)
    (group,) = departed.groups
    assert group.title.endswith("released partition, seed 0, one epoch")
    found = [*of_tables.rows, *departed.rows]
    assert [(row.departure, row.verdict) for row in found] == [
        ("", "in"),
        ("one epoch", "-"),
        ("one epoch", "-"),
        ("two epochs", "-"),
    ]
    text = page(of_tables, departed, draws(runs, known), {})
    (line,) = (line for line in text.splitlines() if line.startswith("| FedAS | "))
    assert [cell.strip() for cell in line.split("|")[2:-1]] == [*["1 in"] * 4, *["0"] * 3]
    assert "A beats B:" not in text.partition("Other settings:")[2]


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
        scored("C", 0.68, 0.68, **given),
        scored("D", 0.60, 0.70, **given),
    ]
    (group,) = groups(runs, NOTHING)
    assert group.half(*group.runs[:2]) == pytest.approx(0.02916, abs=1e-4)
    # A-B +4 yes, A-C +2 noise, A-D +10 yes, B-C -2 noise, C-D: the paper has D before C, no.
    # B and D are equal in the paper, which claims nothing.
    assert group.claims() == {"yes": 2, "within noise": 2, "no": 1}


def test_a_gap_that_the_paper_s_spreads_do_not_support_is_no_claim():
    """Standard errors of 0.004 and 0.003 of 5 runs: a gap of two means has Welch's 7.4 degrees of
    freedom, t 2.337 and the interval 0.0117. A-B is 0.0117 in the paper, A-C 0.011."""
    given = {"paper": "pFedVEM", "spread": 0.004}
    runs = [
        scored("A", 0.70, 0.72, **given),
        scored("B", 0.50, 0.72 - 0.0118, **(given | {"spread": 0.003})),
        scored("C", 0.40, 0.72 - 0.011, **(given | {"spread": 0.003})),
    ]
    (group,) = groups(runs[:2], NOTHING)
    assert group.claims() == {"yes": 1}
    (group,) = groups([runs[0], runs[2]], NOTHING)
    assert group.claims() == {}


def test_seeds_on_one_partition_give_the_spread_of_a_paper():
    """0.80, 0.82 and 0.84 have squares of 0.0008 with 2 degrees of freedom, 0.70 and 0.72 have
    0.0002 with 1: together sqrt(0.001 / 3). Another partition is another matter."""
    values = [("A", 0.80, 0), ("A", 0.82, 1), ("A", 0.84, 2), ("B", 0.70, 0), ("B", 0.72, 1)]
    runs = [scored(row, ours, 0.8, seed=seed, partition=f"p{row}") for row, ours, seed in values]
    runs.append(scored("B", 0.1, 0.8, seed=2, partition="q"))
    assert between_seeds(runs) == {"FedAS": (pytest.approx((0.001 / 3) ** 0.5), 3)}


def test_without_a_printed_spread_noise_is_that_of_seeds_or_of_rounds_where_this_is_larger():
    """One spread of both runs is known with its own degrees of freedom, not with twice as many."""
    known = Background({}, {}, seeds={"FedAS": Deviation(0.01, 3)})
    wide, narrow = Deviation(0.05, 7), Deviation(0.001, 7)
    runs = [scored("A", 0.8, 0.8, rounds=narrow), scored("B", 0.7, 0.7), scored("C", 0.6, 0.6)]
    runs[2] = replace(runs[2], rounds=wide)
    (group,) = groups(runs, known)
    assert group.half(*runs[:2]) == pytest.approx(3.1824 * 2**0.5 * 0.01, rel=1e-4)
    # Welch's degrees of freedom are (0.01^2 + 0.05^2)^2 / (0.01^4 / 3 + 0.05^4 / 7) = 7.543.
    assert group.half(runs[0], runs[2]) == pytest.approx(2.3305 * 0.050990, rel=1e-3)
    # A-B: 10 points are outside 4.5. A-C: 20 are outside 11.9. B-C: 10 are not.
    assert group.claims() == {"yes": 2, "within noise": 1}
    # Rounds that differ by hardly more would give 2.145 sqrt(2) 0.011 with 14 degrees of freedom.
    more = [replace(run, rounds=Deviation(0.011, 7)) for run in runs[:2]]
    (group,) = groups(more, known)
    assert group.half(*more) == pytest.approx(3.1824 * 2**0.5 * 0.01, rel=1e-4)


def test_claims_are_open_where_the_spread_of_a_method_is_not_known():
    """The paper prints one for A alone, and no cell has several seeds."""
    runs = [
        scored("A", 0.8, 0.8, spread=0.01, paper="pFedVEM"),
        scored("B", 0.7, 0.7, paper="pFedVEM"),
    ]
    compared = Compared.of(runs, NOTHING)
    (group,) = compared.groups
    assert (group.half(*runs), group.claims()) == (None, {"open": 1})
    text = page(compared, NONE, draws(runs, NOTHING), {})
    assert "A beats B: 0 yes, 0 no, 0 within noise, 1 open." in text
    assert "0, 1 open |" in text


def test_a_draw_has_the_intervals_of_its_cells():
    """Seeds of a cell with a printed spread are judged by both spreads."""
    given = {"paper": "pFedVEM", "spread": 0.004, "released": True}
    values = (0.60, 0.66, 0.72)
    runs = [scored("A", ours, 0.70, seed=seed, **given) for seed, ours in enumerate(values)]
    ((draw,), (row,)) = draws(runs, NOTHING), rows(runs, NOTHING)
    assert (draw.half, draw.difference) == (row.half, row.difference)


def test_a_cell_of_the_papers_own_partition_is_a_row_of_its_own():
    """It is judged by the spread between seeds, and by none where that is not known."""
    spreads = {("FedAS", "Table 3", "beta 0.1"): Deviation(0.02, 18)}
    runs = [scored("A", 0.80, 0.83), scored("A", 0.80, 0.83, released=True, partition="r")]
    seeds = {"FedAS": Deviation(0.005, 2)}
    own, released = rows(runs, Background({}, spreads, seeds=seeds))
    assert (own.partition, own.by, own.verdict) == ("own", "between partitions", "in")
    assert (released.partition, released.by) == ("released", "between seeds")
    assert released.half == pytest.approx(4.3027 * 2**0.5 * 0.005, abs=1e-5)
    assert (released.verdict, released.verdict_last, released.verdict_best) == ("in", "out", "in")
    _, released = rows(runs, Background({}, spreads))
    assert (released.by, released.verdict) == ("no spread is known", "-")


def test_a_measured_spread_also_judges_two_seeds():
    """sd 0.02 with 18 degrees of freedom, two runs against one: 2.101 sqrt(3 / 2) 0.02 is 0.0515.
    By the two runs alone, 0.80 and 0.82, it would be 12.706 sqrt(3 / 2) 0.0141, which is 0.22."""
    known = Background({}, {("FedAS", "Table 3", "beta 0.1"): Deviation(0.02, 18)})
    runs = [scored("A", value, 0.87, partition=str(value)) for value in (0.80, 0.82)]
    (row,) = rows(runs, known)
    assert (row.ours, row.half) == (pytest.approx(0.81), pytest.approx(0.05146, abs=1e-5))
    assert row.verdict == "out"


def test_reasons_belong_to_cells_that_are_out():
    place = ("FedAS", "Table 3", "beta 0.1")
    reasons = {("FedAS", "Table 3", "A, beta 0.1", "own"): ("hard", "python -m benchmarks.skew")}
    far, near = scored("A", 0.50, 0.83), scored("A", 0.83, 0.83)
    known = Background(reasons, {place: Deviation(0.02, 18)})
    assert [(r.reason, r.command) for r in rows([far], known)] == [
        ("hard", "python -m benchmarks.skew")
    ]
    assert [(r.reason, r.command) for r in rows([near], known)] == [("", "")]
    (row,) = rows([far], Background({}, known.spreads))
    assert row.reason == "unexplained"
