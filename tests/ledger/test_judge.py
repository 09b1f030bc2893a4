"""Verdicts of cells and claims by hand, under each reading."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ledger.judge import by, counts, hangs_on, ranges
from benchmarks.ledger.numbers import rms
from benchmarks.ledger.page import text
from benchmarks.ledger.readings import Assumption, Paper, Reading, is_open, readings
from tests.ledger.known import ledger, run, seeds

VEM = {"paper": "pFedVEM", "released": True}
SIM = {"paper": "FedSimSup", "spread": 0.003}


def row_of(found, name):
    (row,) = (row for row in found.rows if row["cell"].startswith(f"{name},"))
    return row


def claim_of(found, rival):
    (claim,) = (claim for claim in found.claims if claim["rival"] == rival)
    return claim


@pytest.mark.parametrize(
    ("values", "spread", "half", "expected"),
    [
        # A standard error of 0.002 is sd 0.00447 with 4 degrees of freedom; 2.776 sqrt(6) times
        # 0.002 is 0.0136.
        ([60.6], 0.002, 0.01360, "equal"),
        ([60.7], 0.002, 0.01360, "undecided"),
        ([63.4], 0.002, 0.01360, "different"),
        # Our sd of 0.001 with 1 and theirs of 0.00447 with 4 are sqrt((1e-6 + 8e-5) / 5), 0.00402;
        # t is 2.571 with 5, and sqrt(1 / 2 + 1 / 5) 0.8367.
        ([61.0 - 0.0707107, 61.0 + 0.0707107], 0.002, 0.00866, "equal"),
        # Without a ± and without seeds there is no interval.
        ([60.0], None, None, "undecided"),
    ],
)
def test_a_cell_is_judged_by_where_its_whole_interval_lies(values, spread, half, expected):
    (row,) = ledger(*seeds("A", values, 0.60, paper="pFedVEM", spread=spread)).rows
    assert row["half"] == (half and pytest.approx(half, abs=1e-5))
    assert row["verdict"] == expected


def test_an_interval_has_the_method_s_other_cells_where_the_paper_prints_one_run():
    """Squares of 0.0008 with 2 degrees of freedom: sd 0.02. Three runs against one: 4.303 sqrt(4 /
    3) 0.02 is 0.0994; the second cell, one against one: 0.1217."""
    other = {"column": "beta 0.3, P 0.2", "partition": "q"}
    found = ledger(*seeds("A", [80, 82, 84], 0.82), *seeds("A", [60], 0.5, **other))
    halves = {row["cell"]: row["half"] for row in found.rows}
    assert halves == {
        "A, beta 0.1, P 0.2": pytest.approx(0.0994, abs=1e-4),
        "A, beta 0.3, P 0.2": pytest.approx(0.1217, abs=1e-4),
    }
    assert [row["noise"] for row in found.rows] == ["its seeds", "seeds of its other cells"]
    # Neither another method nor our own partition has seeds by that.
    more = ledger(*seeds("A", [80, 82], 0.82), run("A", 0.8, 0.82), *seeds("B", [80], 0.82))
    assert [row["half"] is None for row in more.rows] == [False, True, True]


def test_seeds_on_one_partition_of_our_own_are_one_run():
    """0.80 and 0.82 on p are 0.81, and 0.85 on q: sd 0.0283, and 12.706 sqrt(3 / 2) 0.0283."""
    runs = [run("A", 0.80, 0.83), run("A", 0.82, 0.83, seed=1)]
    assert ledger(*runs).rows[0]["half"] is None
    (row,) = ledger(*runs, run("A", 0.85, 0.83, seed=2, partition="q")).rows
    assert (row["ours"], row["half"]) == (pytest.approx(0.83), pytest.approx(0.4401, abs=1e-3))


def test_a_last_round_after_drawn_cohorts_has_the_noise_of_rounds():
    """The run's tests have a standard deviation of 0.02, the paper's runs 0.00447: 2.776 sqrt(6 /
    5) 0.02 is 0.0608. The best round has the printed one, and so has the released partition."""
    given = {"paper": "pFedVEM", "spread": 0.002, "swing": 0.02, "best": 0.62}
    (row,) = ledger(run("A", 0.55, 0.62, **given)).rows
    assert (row["half"], row["verdict"]) == (pytest.approx(0.06083, abs=1e-4), "undecided")
    assert by(row, Reading("best"))["half"] == pytest.approx(0.0136, abs=1e-4)
    (row,) = ledger(run("A", 0.55, 0.62, released=True, **given)).rows
    assert (row["half"], row["verdict"]) == (pytest.approx(0.0136, abs=1e-4), "different")
    # With a second draw our own seeds say what they differ by.
    (row,) = ledger(*(run("A", 0.55, 0.62, seed=n, partition=f"{n}", **given) for n in (0, 1))).rows
    assert row["half"] == pytest.approx(2.571 * 0.004 * 0.7**0.5, abs=1e-4)


@given(st.integers(1, 12), st.floats(-0.1, 0.1), st.floats(0.0001, 0.02), st.sampled_from("yn"))
def test_more_seeds_of_the_same_mean_and_spread_can_only_decide(pairs, apart, sd, is_printed):
    """Pairs of runs on both sides of the mean, whose deviation is ``sd``, as the paper's is."""
    spread = sd / 5**0.5 if is_printed == "y" else None

    def judged(count):
        from_mean = sd * math.sqrt((2 * count - 1) / (2 * count))
        values = [100 * (0.6 + apart + sign * from_mean) for sign in (1, -1)] * count
        (row,) = ledger(*seeds("A", values, 0.6, paper="pFedVEM", spread=spread)).rows
        return row

    before, after = judged(pairs), judged(pairs + 1)
    assert after["half"] < before["half"]
    assert before["verdict"] in ("undecided", after["verdict"])


def test_a_curve_is_judged_by_each_reading_that_its_paper_leaves_open():
    """FedSimSup says neither which round counts nor how clients are averaged, nor what its ± is: a
    standard deviation of 3 runs gives 4.303 sqrt(4 / 3) 0.003 = 0.0149, a standard error 0.0258."""
    (row,) = ledger(run("FedSimSup", 0.55, 0.60, best=0.605, **SIM)).rows
    found = {judged["reading"].name: judged for judged in row["readings"]}
    assert {*found} == {
        *("", "standard error", "by samples", "by samples, standard error"),
        *("best", "best, standard error", "best, by samples", "best, by samples, standard error"),
    }
    assert found[""]["half"] == pytest.approx(0.01491, abs=1e-5)
    assert found["standard error"]["half"] == pytest.approx(0.02582, abs=1e-5)
    assert found["by samples"]["ours"] == pytest.approx(0.56)
    assert (found[""]["verdict"], found["best"]["verdict"]) == ("different", "equal")
    assert [one["reading"].name for one in hangs_on(row)] == ["best"]
    # A paper that prints its criterion has one reading.
    (row,) = ledger(run("FedAS", 0.55, 0.60, best=0.60)).rows
    assert [judged["reading"] for judged in row["readings"]] == [Reading()]
    assert hangs_on(row) == []


def test_a_verdict_that_takes_two_fields_to_change_says_so():
    """0.0335 short, with ± 0.0149: neither 0.01 by samples nor 0.02 by the best round decides."""
    (row,) = ledger(run("FedSimSup", 0.5665, 0.60, best=0.586, **SIM)).rows
    assert row["verdict"] == "undecided"
    assert [one["reading"].name for one in hangs_on(row)] == ["best, by samples"]


def test_runs_with_other_settings_are_readings_if_the_paper_may_mean_them():
    runs = [
        run("FedSimSup", 0.55, 0.60, **SIM),
        run("FedSimSup", 0.60, 0.60, **SIM, departure="one local epoch"),
        run("FedSimSup", 0.10, 0.60, **SIM, departure="one local epoch, batch 64"),
        run("FedSimSup", 0.20, 0.60, **SIM, departure="another network"),
    ]
    cell, experiment = ledger(*runs).rows
    assert (cell["ours"], cell["verdict"]) == (0.55, "different")
    assert by(cell, Reading(setting="one local epoch"))["verdict"] == "equal"
    assert by(cell, Reading(setting="one local epoch, batch 64"))["ours"] == 0.10
    assert (experiment["experiment"], experiment["verdict"]) == ("another network", "")
    assert ledger(*runs).judged == ledger(*runs).rows[:1]
    # A cell that has run by another reading alone is judged by that.
    (row,) = ledger(runs[1]).rows
    assert (row["setting"], row["verdict"]) == ("one local epoch", "equal")
    # A column may name a reading of another one.
    (row,) = ledger(runs[0], run("FedSimSup", 0.6, 0.6, **SIM, column="data A, by client")).rows[1:]
    assert (row["cell"], row["setting"]) == ("FedSimSup, data A", "by client")


def test_the_headline_counts_by_one_reading_of_each_paper_at_a_time():
    """By the last round one of two is equal, by the best round the other one: never both."""
    given = {**VEM, "spread": 0.001}
    found = ledger(
        run("pFedVEM PM", 0.60, 0.60, best=0.70, **given),
        run("pFedVEM GM", 0.50, 0.60, best=0.60, **given, partition="q"),
        run("FedPer PM", 0.10, 0.60, best=0.10, **given),
        run("pFedVEM PM", 0.2, 0.60, **(given | {"released": False}), column="J 50"),
        run("pFedVEM PM", 0.2, 0.60, **given, departure="one epoch"),
        run("FedAS", 0.5, 0.6, released=True),
    )
    own = [row for row in found.judged if row["own"] and row["partition"] == "released"]
    assert counts(own) == {"equal": 1, "different": 1, "undecided": 1}
    assert ranges(own) == {"equal": (1, 1), "different": (1, 1), "undecided": (1, 1)}
    told = " ".join(text(found, "headline").split())
    assert "Of 3 cells of the papers' own methods" in told
    assert "1 equals the printed accuracy, 1 is different and 1 undecided**" in told
    assert "open, 1 are equal, 1 different and 1 undecided." in told
    assert rms(own[:2]) == pytest.approx((0.01 / 2) ** 0.5)
    assert rms(own[:2], Reading("best")) == pytest.approx((0.01 / 2) ** 0.5)


def test_a_reading_that_a_cell_lacks_leaves_it_as_far_as_it_goes():
    """Where some clients alone were tested before the end there is no best round."""
    (row,) = ledger(run("FedSimSup", 0.55, 0.60, **SIM)).rows
    assert by(row, Reading("best", "samples"))["reading"] == Reading("", "samples")
    assert by(row, Reading("best"))["reading"] == Reading()


def test_a_claim_has_one_verdict_from_its_paired_seeds():
    """Gaps of 0.70, 0.38 and 0.62: mean 0.5667, sd 0.1665, and 4.303 sd / sqrt(3) is 0.4137."""
    runs = [
        *seeds("FedAS", (89.71, 89.65, 89.52), 0.8992),
        *seeds("FedPer", (89.01, 89.27, 88.90), 0.8851),
        # Neither a seed that one of them lacks nor another partition counts.
        run("FedPer", 0.10, 0.8851, seed=3, released=True),
        run("FedPer", 0.10, 0.8851, seed=4, partition="q", released=True),
        run("FedAS", 0.90, 0.8992, seed=4, released=True),
    ]
    (claim,) = ledger(*runs).claims
    assert (claim["gap"], claim["printed"]) == (pytest.approx(0.005667, abs=1e-6), 0.0141)
    assert claim["half"] == pytest.approx(0.004137, abs=1e-5)
    assert (claim["seeds"], claim["verdict"]) == ("0 1 2", "yes")
    assert "0 1 2 | +0.57 ± 0.41 | +1.41 | yes |" in text(ledger(*runs), "FedAS")


def test_with_fewer_pairs_a_gap_has_each_method_s_own_noise():
    """sd 0.0971 and 1.1769 with 2 degrees of freedom each have 2.027 together, and one pair 4.248
    times 1.181."""
    more = {"column": "beta 0.3, P 0.2", "partition": "q"}
    runs = [
        *seeds("FedAS", (89.71, 89.65, 89.52), 0.8992),
        *seeds("FedPer", (89.00, 89.27, 87.11), 0.8851),
        *seeds("FedAS", [80], 0.8, **more),
        *seeds("FedPer", [74], 0.78, **more),
        *seeds("FedALA", [70], 0.75, **more),
    ]
    found = [claim for claim in ledger(*runs).claims if "0.3" in claim["column"]]
    per, ala = sorted(found, key=lambda claim: claim["rival"], reverse=True)
    assert per["half"] == pytest.approx(0.05016, abs=1e-5)
    assert (per["verdict"], ala["verdict"], ala["half"]) == ("yes", "undecided", None)


def test_a_claim_says_where_another_reading_decides_otherwise():
    """Each single run has 2.776 sqrt(2) times the same sd of 0.00447, in a gap 0.0103 with 8."""
    given = {**VEM, "spread": 0.002}
    found = ledger(
        run("pFedVEM PM", 0.72, 0.72, best=0.72, **given),
        run("FedPer PM", 0.70, 0.70, best=0.73, **given),
    )
    (claim,) = found.claims
    assert (claim["verdict"], claim["by"]) == ("yes", {"": "yes", "best": "undecided"})
    assert claim["half"] == pytest.approx(2.306 * 2**0.5 * 0.00447, abs=1e-4)
    assert "| yes; by other readings also undecided |" in text(found, "pFedVEM")


def test_a_rival_that_is_ahead_is_named():
    given = {**VEM, "spread": 0.002}
    runs = [run("pFedVEM PM", 0.7, 0.72, **given), run("FedPer PM", 0.75, 0.70, **given)]
    assert "1 do not and 0 are undecided, and FedPer PM is 5.00 points ahead" in text(
        ledger(*runs), "pFedVEM"
    )


def test_a_gap_that_the_paper_s_spreads_do_not_support_is_no_claim():
    """Standard errors of 0.004 and 0.003 of 5 runs: a gap of two means has Welch's 7.4 degrees of
    freedom, t 2.337 and the interval 0.0117."""
    given = {"paper": "pFedVEM", "spread": 0.004}
    found = ledger(
        run("pFedVEM PM", 0.70, 0.72, **given),
        run("B", 0.50, 0.72 - 0.0118, **(given | {"spread": 0.003})),
        run("C", 0.40, 0.72 - 0.011, **(given | {"spread": 0.003})),
    )
    assert [claim["rival"] for claim in found.claims] == ["B"]


def test_a_rival_that_is_ahead_in_the_paper_is_no_claim():
    found = ledger(run("FedAS", 0.7, 0.70), run("FedPer", 0.6, 0.71), run("FedALA", 0.6, 0.70))
    assert found.claims == []


def test_the_released_partition_comes_first():
    found = ledger(
        run("FedAS", 0.70, 0.72),
        run("FedPer", 0.80, 0.70),
        run("FedAS", 0.75, 0.72, released=True, partition="r"),
        run("FedPer", 0.74, 0.70, released=True, partition="r"),
    )
    (claim,) = found.claims
    assert (claim["gap"], claim["whose"]) == (pytest.approx(0.01), "released")


def test_a_column_of_another_table_may_be_the_same():
    found = ledger(
        run("FedAS", 0.90, 0.8992),
        run("PA alone", 0.88, 0.8934, table="Table 4", column="P 0.2"),
        run("CS alone", 0.88, 0.8905, table="Table 4", column="P 0.4"),
    )
    (claim,) = found.claims
    assert (claim["rival"], claim["table"], claim["printed"]) == ("PA alone", "Table 4", 0.0058)


def test_reasons_belong_to_cells_that_are_different():
    place = ("FedSimSup", "Table 3")
    reasons = {(*place, f"{name}, beta 0.1, P 0.2", "own"): ("hard", "look") for name in "AB"}
    found = ledger(run("A", 0.5, 0.8, **SIM), run("B", 0.8, 0.8, **SIM), reasons=reasons)
    assert [(row["reason"], row["command"]) for row in found.rows] == [("hard", "look"), ("", "")]


def test_errors_of_seeds_stand_beside_the_printed_ones():
    """0.60, 0.62 and 0.64 have sd 0.02, of the mean 0.01155; the best rounds are all 0.65."""
    runs = seeds("A", (60, 62, 64), 0.6, paper="pFedVEM", spread=0.003, best=0.65)
    (row,) = ledger(*runs).errors
    assert [row[key] for key in ("last", "best")] == [pytest.approx(0.01155, abs=1e-5), 0]
    assert (row["printed"], row["seeds"]) == (0.003, 3)
    assert ledger(*runs[:2]).errors == []


def test_what_a_paper_leaves_open_depends_on_the_cell():
    paper = Paper.model_validate(
        {
            "assumed": {"epochs": {"taken": "5", "source": "printed"}},
            "where": [
                {"row": ["B"], "epochs": {"taken": "4", "source": "silent", "others": ["two"]}},
                {"column": "MNIST", "epochs": {"taken": "3", "source": "silent"}},
            ],
        }
    )
    taken = {
        (row, column): paper.assumptions(row, column)["epochs"].taken
        for row in "AB"
        for column in ("CIFAR", "MNIST, J 5")
    }
    assert [*taken.values()] == ["5", "3", "4", "3"]
    assert is_open("two", paper.assumptions("B", "CIFAR"))
    assert not is_open("two", paper.assumptions("A", "CIFAR"))
    assert not is_open("two, three", paper.assumptions("B", "CIFAR"))


def test_the_reading_that_is_taken_comes_first():
    assumed = {"criterion": Assumption(taken="last", source="silent", others=["best"])}
    assert [*readings(assumed, ["", "x"])] == [
        *(Reading(), Reading("best"), Reading(setting="x"), Reading("best", setting="x")),
    ]
    assert [one.is_simple for one in readings(assumed, ["x"])] == [True, True, True, False]
