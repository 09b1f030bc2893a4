import pytest

from pfl.cli.explain import UsageError
from pfl.core.space import Dimension
from pfl.extras.bench import points
from tests.helpers.messages import parts

RATE = Dimension("lr", 0.01, 1.0, log=True)
EPOCHS = Dimension("epochs", choices=(1, 2, 5))
OWN = Dimension("mu", 0.0, 1.0)


def test_the_first_points_stay_as_they_are():
    """Recorded, because a committed leaderboard holds settings that others draw again."""
    found = points.settings([RATE, EPOCHS], 4)
    assert found == [
        {"lr": 0.3691, "epochs": 5},
        {"lr": 0.02199, "epochs": 1},
        {"lr": 0.07521, "epochs": 2},
    ]


def test_shared_dimensions_have_the_same_points_whatever_a_method_adds():
    alone, beside = points.settings([RATE, EPOCHS], 9), points.settings([RATE, EPOCHS, OWN], 9)
    assert alone == [{"lr": one["lr"], "epochs": one["epochs"]} for one in beside]


def test_a_larger_budget_begins_with_the_points_of_a_smaller_one():
    few, many = points.settings([RATE, OWN], 5), points.settings([RATE, OWN], 40)
    assert len(few) == 4
    assert many[:4] == few


def test_points_fill_a_space_evenly():
    """Of 16 scrambled Sobol points, one lies in each sixteenth of each dimension."""
    found = points.settings([OWN], 17)
    assert sorted(int(16 * one["mu"]) for one in found) == [*range(16)]


def test_the_default_alone_needs_no_point():
    assert points.settings([RATE], 1) == []


def test_too_many_dimensions_are_refused():
    many = [Dimension(f"d{number}", 0.0, 1.0) for number in range(17)]
    with pytest.raises(UsageError, match=parts("16 dimensions ~ 17: d0, d1")):
        points.settings(many, 2)


def test_edges_are_those_of_what_was_tried():
    tried = [{"lr": 0.1, "mu": 1, "word": "a"}, {"lr": 0.2, "mu": 1, "word": "b"}, {"lr": 0.4}]
    assert points.edges({"lr": 0.1, "mu": 1, "word": "a"}, tried) == {"lr": "low"}
    assert points.edges({"lr": 0.2, "mu": 1}, tried) == {}
    assert points.edges({"lr": 0.4}, tried) == {"lr": "high"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 1.0, "high": 1.0}, "mu: ~ low < high ~ 1.0 and 1.0"),
        ({"low": 0.0, "high": 1.0, "log": True}, "mu: ~ logarithm ~ positive ~ 0.0"),
        ({"choices": (1,)}, "mu: choices ~ two"),
        ({"choices": (1, 2), "low": 0.0}, "mu: choices ~ no range"),
    ],
)
def test_a_dimension_is_a_range_or_a_list(options, message):
    with pytest.raises(ValueError, match=parts(message)):
        Dimension("mu", **options)


def test_a_range_is_searched_evenly_on_its_scale():
    assert [RATE.at(place) for place in (0.0, 0.5)] == [0.01, 0.1]
    assert OWN.at(0.25) == 0.25
    assert [EPOCHS.at(place) for place in (0.0, 0.34, 0.999)] == [1, 2, 5]
