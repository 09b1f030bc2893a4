import numpy as np
import pytest

from pfl.extras.bench import tables
from pfl.extras.bench.hashed import hashed
from pfl.extras.bench.rows import Leaderboard
from pfl.extras.bench.standing import ranked, standings, visible
from pfl.results.sheets import markdown


def row(method, scores, default=None, trials=(0.5, 0.7)):
    runs = [{"seed": n, "best_by_val": {"acc": score}} for n, score in enumerate(scores)]
    first = [{"seed": n, "best_by_val": {"acc": s}} for n, s in enumerate(default or scores)]
    tried = [
        {"settings": {"lr": 0.1}, "rounds": 3, "samples": 10, "validation": value, "more": True}
        for value in trials
    ]
    budget = {"trials": 2, "samples": 10, "seeds": len(scores)}
    return hashed(
        {
            **{"method": method, "task": "t", "budget": budget, "chosen": 1, "edges": {}},
            **{"trials": tried, "tuned": runs, "default": first, "own_dimensions": 0},
        }
    )


def board(*found, more=True):
    task = {"name": "toys", "hash": "t", "caption": "Toys", "notes": [], "score": "acc"}
    return Leaderboard({**task, "more": more}, {one["method"]: one for one in found})


def test_ranks_are_means_over_the_seeds():
    """Ranks 1, 1, 2 and 2, 2, 1: means 4/3 and 5/3."""
    found = standings(board(row("A", [0.9, 0.8, 0.5]), row("B", [0.7, 0.7, 0.7])))
    assert [(one.label, round(one.rank, 4)) for one in found] == [("A", 1.3333), ("B", 1.6667)]
    less = standings(board(row("A", [0.9, 0.8, 0.5]), row("B", [0.7, 0.7, 0.7]), more=False))
    assert [one.label for one in less] == ["B", "A"]


def test_a_failed_run_ranks_last():
    assert ranked(np.array([[np.nan], [0.1], [0.2]]), more=True).tolist() == [[3], [2], [1]]
    assert ranked(np.array([[np.nan], [0.1], [0.2]]), more=False).tolist() == [[3], [1], [2]]


def test_what_seeds_can_see_is_the_least_difference_that_holms_first_step_finds():
    """Differences 0.1, 0.2 and 0.3 have the deviation 0.1. One of two tests needs p below 0.025.

    t with two degrees of freedom is then sqrt(2) c / sqrt(1 - c^2) = 6.2053 with c = 0.975, and
    with nine it is 2.6850.
    """
    reference = row("FedAvgP", [0.5, 0.5, 0.5])
    whole = board(reference, row("A", [0.6, 0.7, 0.8]), row("B", [0.4, 0.3, 0.5]))
    found = standings(whole)
    one = next(one for one in found if one.label == "A")
    table = tables.ranking(whole, found)
    assert table.rows[0][table.columns.index("seen from")] == "35.83"  # in points
    assert one.visible == pytest.approx(6.2053 * 0.1 / 3**0.5, rel=1e-4)
    assert visible(one.test, 2, 10) == pytest.approx(2.6850 * 0.1 / 10**0.5, rel=1e-4)
    # A mean difference of just as much has the adjusted p-value 0.05 if the other test is weaker.
    shifted = row("A", [0.4 + one.visible, 0.5 + one.visible, 0.6 + one.visible])
    at_least = standings(board(reference, shifted, row("B", [0.4, 0.3, 0.5])))
    assert next(o for o in at_least if o.label == "A").test.p_holm == pytest.approx(0.05, abs=1e-4)


def test_tests_are_against_tuned_fedavg_ft_with_holms_adjustment():
    reference = row("FedAvgP", [0.5, 0.6, 0.7])
    better = row("A", [0.61, 0.7, 0.81])
    other = row("B", [0.4, 0.7, 0.6])
    found = {one.label: one for one in standings(board(reference, better, other))}
    assert found["FedAvg-FT"].test is None
    test = found["A"].test
    assert test.difference == pytest.approx(0.32 / 3)
    assert test.p_holm == pytest.approx(2 * test.p)
    assert found["B"].test.p_holm == pytest.approx(max(found["B"].test.p, test.p_holm))


def test_where_less_is_better_a_lower_score_counts_as_better():
    found = standings(board(row("FedAvgP", [0.5, 0.6]), row("A", [0.4, 0.45]), more=False))
    assert next(one for one in found if one.label == "A").test.difference == pytest.approx(0.125)


def test_the_table_has_the_score_of_those_who_joined_where_somebody_did():
    one, other = row("FedAvgP", [0.5, 0.7]), row("A", [0.6, 0.8])
    assert "joined" not in tables.ranking(board(one, other), standings(board(one, other))).columns
    for run, score in zip(one["tuned"], (0.2, 0.4), strict=True):
        run["last"] = {"unseen_joined/acc": score}
    majority = {**row("majority class", [0.1, 0.1])}
    made = board(one, other, majority)
    found = tables.ranking(made, standings(made))
    joined = {line[0]: line[found.columns.index("joined")] for line in found.rows}
    # Mean and standard error of 20 and 40; those of A failed.
    assert joined == {"FedAvg-FT": "30.00 ± 10.00", "A": "failed", "majority class": "-"}


def test_the_sheets_say_who_wins_and_what_was_chosen():
    reference = row("FedAvgP", [0.5, 0.6, 0.7])
    tuned = row("A", [0.801, 0.9, 0.999], default=[0.1, 0.2, 0.3])
    runs = row("M", [0.1, 0.1, 0.1])["tuned"]
    majority = {"method": "majority class", "task": "t", "budget": tuned["budget"], "tuned": runs}
    made = tables.sheets(board(reference, tuned, hashed(majority)), {"A": 12.0})
    text = markdown(made)
    assert [sheet.title for sheet in made] == ["Toys", "Chosen settings", "Cost"]
    assert "Best mean rank: A. Best by default settings alone: FedAvg-FT." in text
    assert "Better than tuned FedAvg-FT (Holm, 5 %): A." in text
    assert [*made[1].rows[0]] == ["A", "2", "lr 0.1", "-", "3", "0", "shared dimensions only"]
    assert [*made[2].rows[0]] == ["A", "10", "-", "-", "12"]
    assert [len(sheet.rows) for sheet in made] == [3, 2, 2]
