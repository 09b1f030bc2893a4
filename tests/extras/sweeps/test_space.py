"""The values that a parameter can have, and the points of a grid."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from itertools import product

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl.extras.sweeps.space import Categorical, Range, Space


def test_the_last_parameter_of_a_grid_varies_fastest():
    space = Space({"a": Categorical([1, 2]), "b": Range(3, 5, whole=True)}, {"c": [0]})
    points = [space.decode(space.on_grid(number)) for number in range(space.size)]
    assert points == [{"a": a, "b": b, "c": [0]} for a, b in product([1, 2], [3, 4, 5])]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_grid_has_every_point_once(sizes):
    space = Space({f"p{i}": Range(1, size, whole=True) for i, size in enumerate(sizes)})
    points = {tuple(space.on_grid(number).values()) for number in range(space.size)}
    assert len(points) == space.size == math.prod(sizes)


def test_lists_and_mappings_come_back_as_they_were():
    values = [[64, 64], {"class_path": "MLP"}, None, "a", 1.5]
    parameter = Categorical(values)
    assert [parameter.decode(choice) for choice in parameter.grid()] == values
    # Optuna warns of what it cannot store.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(parameter.distribution.choices) == 5


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (Range(2, 4, whole=True), [2, 3, 4]),
        (Range(0, 0.3, step=0.1), [0.0, 0.1, 0.2, 0.3]),
        # Multiples of the step, as with W&B, not the least value plus steps.
        (Range(1, 9, whole=True, step=4), [4, 8]),
        (Range(0.5, 2.5, step=1.0), [1.0, 2.0]),
    ],
)
def test_values_on_steps(parameter, values):
    assert parameter.grid() == values
    assert [type(value) for value in parameter.grid()] == [type(value) for value in values]
    assert all(parameter.distribution._contains(value) for value in values)


@given(
    low=st.floats(1e-4, 10),
    factor=st.floats(1, 1e4),
    step=st.sampled_from([None, 0.01, 0.5, 1, 2]),
    log=st.booleans(),
    seed=st.integers(0, 100),
)
def test_a_draw_lies_in_the_range_and_on_the_steps(low, factor, step, log, seed):
    high = low * factor
    parameter = Range(low, high, whole=step in (1, 2), log=log, step=step)
    if parameter.empty:
        return
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    value = parameter.decode(study.ask({"x": parameter.distribution}).params["x"])
    assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    if step is not None:
        assert value / step == pytest.approx(round(value / step))
    assert isinstance(value, int) == (step in (1, 2))


def test_probabilities():
    """Of 4000 draws with probability 3/4, 3000 are expected, with a deviation of 27."""
    space = Space({"a": Categorical(["x", "y"], [0.75, 0.25]), "b": Categorical([1, 2])})
    drawn = Counter(space.weighted(seed)["a"] for seed in range(4000))
    assert abs(drawn["x"] - 3000) < 4 * 27.4
    assert list(space.weighted(0)) == ["a"]
    assert space.weighted(7) == space.weighted(7)
