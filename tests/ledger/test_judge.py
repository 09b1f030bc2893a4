"""Verdicts of cells, draws and claims by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ledger.judge import HERE, Ledger, read_rules
from benchmarks.ledger.noise import Noise
from benchmarks.ledger.page import text
from pfl.disk.reading import FileError
from tests.helpers.messages import parts
from tests.ledger.known import AFTER, ledger, run, seeds

PLACE = ("FedAS", "Table 3", "beta 0.1, P 0.2")


def row_of(found, name):
    (row,) = (row for row in found.rows if row["cell"].startswith(f"{name},"))
    return row


def claim_of(found, rival):
    (claim,) = (claim for claim in found.claims if claim["rival"] == rival)
    return claim


@pytest.mark.parametrize(
    ("values", "paper", "spread", "expected"),
    [
        # 2.776 sqrt(6) times 0.01 is 0.068.
        ([0.667], "pFedVEM", 0.01, "in"),
        ([0.669], "pFedVEM", 0.01, "out"),
        # 4.303 sqrt(4 / 3) times 0.01 is 0.0497.
        ([0.649], "FedSimSup", 0.01, "in"),
        ([0.651], "FedSimSup", 0.01, "out"),
        # Two runs with sd 0.0141, and 5 with 0.0224: Welch's 3.2 degrees of freedom, 0.0434.
        ([0.633, 0.653], "pFedVEM", 0.01, "in"),
        ([0.634, 0.654], "pFedVEM", 0.01, "out"),
        ([0.601], "FedAS", None, "-"),
    ],
)
def test_a_printed_spread_judges(values, paper, spread, expected):
    runs = [
        run("A", value, 0.60, paper=paper, spread=spread, seed=seed, released=True)
        for seed, value in enumerate(values)
    ]
    (row,) = ledger(*runs).rows
    assert row["verdict"] == expected
    assert row["rule"] == ("" if expected == "-" else "printed")


def test_a_cell_without_a_printed_number_has_no_verdict():
    (row,) = ledger(run("A", 0.5, None)).rows
    assert (row["verdict"], row["half"]) == ("-", None)
    assert ledger(run("A", 0.5, None)).draws == []


def test_another_partition_is_judged_by_what_partitions_differ_by():
    """sd 0.02 with 18 degrees of freedom, two runs against one: 0.0515; one run: 0.0594."""
    spreads = {PLACE: Noise(0.02, 18, "partitions")}
    runs = [run("A", value, 0.87, seed=n, partition=f"{n}") for n, value in enumerate((0.8, 0.82))]
    (row,) = ledger(*runs, spreads=spreads).rows
    assert (row["ours"], row["half"]) == (pytest.approx(0.81), pytest.approx(0.05146, abs=1e-5))
    assert (row["verdict"], row["rule"]) == ("out", "partitions")
    (row,) = ledger(run("A", 0.811, 0.87), spreads=spreads).rows
    assert (row["verdict"], row["half"]) == ("in", pytest.approx(0.05942, abs=1e-5))
    # The released partition is not judged by it.
    (row,) = ledger(run("A", 0.811, 0.87, released=True), spreads=spreads).rows
    assert row["verdict"] == "-"


QUIET, LOUD = (89.71, 89.65, 89.52), (89.00, 89.27, 87.11)


def test_a_method_with_seeds_is_judged_by_its_own():
    """Quiet's sd is 0.0971 with 2 degrees of freedom, three runs against one: 4.303 sqrt(4 / 3)
    0.0971 is 0.4825. Bartlett's p of both is 0.016: the third method, without seeds, is not judged.
    """
    found = ledger(
        *seeds("Quiet", QUIET, 0.8910), *seeds("Loud", LOUD, 0.8910), *seeds("C", [88], 0.8910)
    )
    quiet, loud, third = (row_of(found, name) for name in ("Quiet", "Loud", "C"))
    assert quiet["half"] == pytest.approx(0.004825, abs=1e-5)
    assert [row["verdict"] for row in (quiet, loud, third)] == ["out", "in", "-"]
    assert quiet["rule"] == "seeds"


def test_a_method_s_cells_are_pooled_and_another_seed_of_a_rival_changes_nothing():
    """Quiet's second cell has no seeds: 4.303 sqrt(2) 0.0971 is 0.591."""
    more = run("Quiet", 0.80, 0.8050, column="beta 0.3, P 0.2", partition="q", released=True)
    runs = [*seeds("Quiet", QUIET, 0.8910), *seeds("Loud", LOUD, 0.8910), more]
    second = next(row for row in ledger(*runs).rows if "beta 0.3" in row["cell"])
    assert (second["half"], second["verdict"]) == (pytest.approx(0.00591, abs=1e-5), "in")
    more = run("Loud", 0.95, 0.8910, seed=3, released=True)
    assert row_of(ledger(*runs, more), "Quiet, beta 0.1")["half"] == pytest.approx(0.004825, 1e-3)


def test_methods_are_pooled_where_the_test_allows_it_and_not_where_there_is_no_test():
    """sd 0.1 with 2 degrees of freedom and 0.2 with 2, Bartlett's p 0.4: together sqrt(0.025) with
    4, and two single runs have 2.776 sqrt(2) 0.158 = 0.621."""
    first, second = seeds("A", [80, 80.1, 80.2], 0.8), seeds("B", [70, 70.2, 70.4], 0.7)
    third = seeds("C", [60], 0.6)
    row = row_of(ledger(*first, *second, *third), "C")
    assert row["half"] == pytest.approx(0.00621, abs=1e-5)
    assert (row["verdict"], row["rule"]) == ("in", "pooled seeds")
    assert row_of(ledger(*first, *third), "C")["verdict"] == "-"


def test_methods_are_not_pooled_if_the_cells_of_one_of_them_cannot_be():
    """A's two cells have sd 0.1 and 3; it is judged by its cell's own seeds, C by nothing."""
    more = {"column": "beta 0.3, P 0.2", "partition": "q"}
    found = ledger(
        *seeds("A", (80, 80.1, 80.2), 0.8),
        *seeds("A", (57, 60, 63), 0.6, **more),
        *seeds("B", (70, 70.2, 70.4), 0.7),
        *seeds("C", [60], 0.6),
    )
    assert [found.seeds["FedAS", "A"], found.seeds[("FedAS",)]] == [None, None]
    # 4.303 sqrt(4 / 3) times 0.1 and 3.
    halves = [row["half"] for row in found.rows if row["cell"].startswith("A")]
    assert halves == [pytest.approx(0.004968, abs=1e-5), pytest.approx(0.14905, abs=1e-4)]
    assert row_of(found, "C")["verdict"] == "-"


def test_seeds_on_other_partitions_are_another_matter():
    runs = [run("A", 0.8 + n / 100, 0.8, seed=n, partition=f"p{n}", released=True) for n in (0, 1)]
    assert ledger(*runs).rows[0]["verdict"] == "-"


def test_a_rule_that_is_younger_than_a_run_is_marked():
    (row,) = ledger(run("A", 0.6, 0.6, paper="pFedVEM", spread=0.01)).rows
    assert row["judged_afterwards"]
    assert row["rule_date"] == "2026-11-23T03:06+00:00"
    (row,) = ledger(run("A", 0.6, 0.6, paper="pFedVEM", spread=0.01, ended=AFTER)).rows
    assert not row["judged_afterwards"]
    assert len(row["rule_hash"]) == 12
    # Of several seeds one is enough; a run without a date is older than every rule.
    late, unknown = ({"paper": "pFedVEM", "spread": 0.01, "ended": at} for at in (AFTER, ""))
    (row,) = ledger(run("A", 0.6, 0.6, **late), run("A", 0.61, 0.6, seed=1, **unknown)).rows
    assert row["judged_afterwards"]


def test_a_changed_rule_is_refused(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text((HERE / "rules.yaml").read_text().replace("2.776 sqrt(6)", "3 sqrt(6)"))
    with pytest.raises(FileError, match=parts("the rule 'printed' is not the one ~ date")):
        read_rules(file)
    file.write_text((HERE / "rules.yaml").read_text().replace("11-23T13:53", "11-22T13:53"))
    with pytest.raises(FileError, match=parts("the rule 'partitions' is not the one")):
        read_rules(file)


def test_a_draw_of_the_partition_alone_is_judged_and_other_settings_are_not():
    given = {"paper": "pFedVEM", "spread": 0.01}
    found = ledger(
        run("A", 0.6, 0.6, **given, departure="split seed 1 instead of 42"),
        run("B", 0.6, 0.6, **given, departure="one epoch"),
        run("C", 0.6, 0.6, paper="FedAS", departure="split seed 1 instead of 42"),
    )
    verdicts = {row["cell"][0]: (row["verdict"], row["rule"]) for row in found.rows}
    assert verdicts == {"A": ("in", "printed, redrawn"), "B": ("-", ""), "C": ("-", "")}
    assert [draw["row"] for draw in found.draws] == ["A"]


def test_runs_on_one_partition_are_one_draw_at_a_joint_level():
    """18 degrees of freedom and sd 0.02: of three cells each has the level 0.9833 and the interval
    2.639 sqrt(2) 0.02 = 0.0746; alone it would be 0.0594, and of A's two seeds less."""
    spreads = {PLACE: Noise(0.02, 18, "partitions")}
    runs = [
        run("A", 0.79, 0.83),
        run("A", 0.81, 0.83, seed=1),
        run("B", 0.75, 0.79),
        run("C", 0.67, 0.60),
    ]
    (draw,) = ledger(*runs, spreads=spreads).draws
    assert (draw["cells"], draw["verdict"], draw["row"]) == (3, "in", "C")
    assert draw["half"] == pytest.approx(0.07464, abs=1e-4)
    assert draw["rms"] == pytest.approx(((0.03**2 + 0.04**2 + 0.07**2) / 3) ** 0.5)
    assert row_of(ledger(*runs, spreads=spreads), "C")["verdict"] == "out"
    # One cell that is far out is not outvoted, nor balanced by others of the other sign.
    (draw,) = ledger(*runs, run("D", 0.60, 0.79), spreads=spreads).draws
    assert (draw["verdict"], draw["row"]) == ("out", "D")
    first, second = ledger(*runs, run("A", 0.70, 0.83, partition="q"), spreads=spreads).draws
    assert (first["verdict"], second["verdict"]) == ("in", "out")


def test_a_draw_with_a_cell_that_cannot_be_judged_is_not_in():
    runs = [*seeds("Quiet", QUIET, 0.8960), *seeds("Other", [50], 0.8)]
    (draw,) = ledger(*runs).draws
    assert (draw["verdict"], draw["row"], draw["half"]) == ("-", "Other", None)
    (draw,) = ledger(*runs, *seeds("Loud", LOUD, 0.7)).draws
    assert (draw["verdict"], draw["row"]) == ("out", "Loud")


def test_a_claim_has_one_verdict_from_its_paired_seeds():
    """Gaps of 0.70, 0.38 and 0.62: mean 0.5667, sd 0.1665, and 4.303 sd / sqrt(3) is 0.4137. The
    paper has 1.41, of which it is 40 %."""
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
    assert "0.57 ± 0.41 | +1.41 | 40 % | yes |" in text(ledger(*runs), "FedAS")


def test_with_fewer_pairs_a_gap_has_each_method_s_own_noise():
    """sd 0.0971 and 1.1769 with 2 degrees of freedom each have 2.027 together, and one pair 4.248
    times 1.181."""
    more = {"column": "beta 0.3, P 0.2", "partition": "q"}
    runs = [
        *seeds("FedAS", QUIET, 0.8992),
        *seeds("FedPer", LOUD, 0.8851),
        *seeds("FedAS", [80], 0.8, **more),
        *seeds("FedPer", [74], 0.78, **more),
        *seeds("FedALA", [70], 0.75, **more),
    ]
    found = [claim for claim in ledger(*runs).claims if "0.3" in claim["column"]]
    per, ala = sorted(found, key=lambda claim: claim["rival"], reverse=True)
    assert per["half"] == pytest.approx(0.05016, abs=1e-5)
    assert (per["verdict"], ala["verdict"], ala["half"]) == ("yes", "-", None)


def test_a_rival_without_seeds_has_the_noise_of_all_where_the_test_allows_it():
    """sd 0.1 with 2 degrees of freedom for FedAS, sqrt(0.025) with 4 for FedALA: 5.94 together, and
    2.453 sqrt(0.035) is 0.459."""
    found = ledger(
        *seeds("FedAS", (80, 80.1, 80.2), 0.8),
        *seeds("FedPer", (70, 70.2, 70.4), 0.7),
        *seeds("FedALA", [79.5], 0.7),
    )
    claim = claim_of(found, "FedALA")
    assert (claim["half"], claim["verdict"]) == (pytest.approx(0.00459, abs=1e-5), "yes")


def test_two_pairs_are_too_few_to_say_what_gaps_differ_by():
    """Squares of 0.02 and 0.005 with 3 degrees of freedom, and of 0.08 and 0.005 with 3: variances
    of 0.00833 and 0.02833, together 4.63, and 2.634 sqrt(0.03667 / 2) is 0.357. Two equal gaps
    alone would have no noise at all."""
    more = {"column": "beta 0.3, P 0.2", "partition": "q"}
    found = ledger(
        *seeds("FedAS", (80, 80.1, 80.2), 0.8),
        *seeds("FedPer", (70, 70.2, 70.4), 0.7),
        *seeds("FedAS", (60, 60.1), 0.6, **more),
        *seeds("FedPer", (59.7, 59.8), 0.55, **more),
    )
    (claim,) = (claim for claim in found.claims if "0.3" in claim["column"])
    assert claim["half"] == pytest.approx(0.00357, abs=1e-5)
    assert (claim["seeds"], claim["verdict"]) == ("0 1", "within noise")


def test_claims_are_counted_by_the_printed_spread():
    """Standard errors of 0.004 of 5 runs: a gap of two single runs has Welch's 8 degrees of
    freedom: 2.306 sqrt(2) 0.00894 is 0.0292."""
    given = {"paper": "pFedVEM", "spread": 0.004}
    found = ledger(
        run("pFedVEM PM", 0.70, 0.72, **given),
        run("B", 0.66, 0.70, **given),
        run("C", 0.68, 0.68, **given),
        run("D", 0.74, 0.70, **given),
        run("E", 0.10, 0.72, **given),
        run("F", 0.10, 0.73, **given),
    )
    assert {claim["rival"]: claim["verdict"] for claim in found.claims} == {
        **{"B": "yes", "C": "within noise", "D": "no"},
        # E and F are equal and better in the paper, which claims nothing.
    }
    assert claim_of(found, "C")["half"] == pytest.approx(0.02916, abs=1e-4)
    assert "a gap below 2.92 cannot be seen" in text(found, "pFedVEM")


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


def test_seeds_here_go_before_a_printed_spread():
    """sd 0.1 with 2 degrees of freedom, and 5 runs of sd 0.894 with 4: variances of 0.01 and 0.8,
    4.10 together, and 2.750 sqrt(0.81) is 2.475. With the printed spread twice it is 2.916."""
    given, more = {"paper": "pFedVEM", "spread": 0.004}, {"partition": "q", "column": "J 50"}
    found = ledger(
        *seeds("FedPer PM", (70, 70.1, 70.2), 0.7, **given),
        run("FedPer PM", 0.70, 0.7, **given, **more),
        run("pFedVEM PM", 0.71, 0.8, **given, **more),
    )
    (claim,) = found.claims
    assert claim["half"] == pytest.approx(0.02475, abs=1e-5)


def test_claims_are_of_the_paper_s_own_method_and_like_with_like():
    """A personal model is tested on its client's classes, and no match for one tested on all."""
    given = {"paper": "pFedVEM", "spread": 0.004}
    pooled = {**given, "metric": "test/pooled/acc/last"}
    found = ledger(
        run("pFedVEM PM", 0.70, 0.72, **given),
        run("pFedVEM GM", 0.60, 0.62, **pooled),
        run("FedPer PM", 0.66, 0.60, **given),
        run("FedAvg GM", 0.50, 0.50, **pooled),
    )
    pairs = [(claim["own"], claim["rival"]) for claim in found.claims]
    assert sorted(pairs) == [("pFedVEM GM", "FedAvg GM"), ("pFedVEM PM", "FedPer PM")]


def test_runs_on_the_released_partition_decide_a_claim():
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


def test_the_headline_counts_own_methods_and_released_draws():
    given = {"paper": "pFedVEM", "spread": 0.01, "released": True}
    found = ledger(
        run("pFedVEM PM", 0.61, 0.60, **given),
        run("FedPer PM", 0.63, 0.60, **given),
        run("pFedVEM GM", 0.40, 0.60, **given, partition="q"),
        run("FedPer PM", 0.2, 0.60, **(given | {"released": False}), partition="own"),
        run("pFedVEM PM", 0.2, 0.60, **given, departure="one epoch"),
    )
    told = " ".join(text(found, "headline").split())
    assert "own methods: 1 of 2 cells are in** (1 out)" in told
    assert "released code: 1 of 2 agree in all their cells** (1 out)" in told
    # sqrt((1 + 9 + 400) / 3) and sqrt((1 + 400) / 2).
    assert "11.69 points from the printed ones** (root mean square of 3 cells; of the 2 " in told
    assert "methods: 14.16)" in told


def test_reasons_belong_to_cells_that_are_not_in():
    spreads = {PLACE: Noise(0.02, 18, "partitions")}
    reasons = {(*PLACE[:2], f"{name}, {PLACE[2]}", "own"): ("hard", "look") for name in "AB"}
    found = ledger(run("A", 0.5, 0.8), run("B", 0.8, 0.8), spreads=spreads, reasons=reasons)
    assert [row["reason"] for row in found.rows] == ["hard", ""]
    assert [row["command"] for row in found.rows] == ["look", ""]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("paper,table,column,sdd,df\n", "spreads.csv: ~ sd"),
        ("a,b,c,x,18\n", "spreads.csv: sd and df must be positive"),
        ("a,b,c,nan,18\n", "spreads.csv: sd and df must be positive"),
        ("a,b,c,0.1,-1\n", "spreads.csv: sd and df must be positive"),
    ],
)
def test_a_damaged_table_of_spreads_is_refused(tmp_path, line, message):
    head = "" if "sdd" in line else "paper,table,column,sd,df\n"
    Path(tmp_path, "spreads.csv").write_text(head + line)
    with pytest.raises(FileError, match=parts(message)):
        Ledger.read(tmp_path)
