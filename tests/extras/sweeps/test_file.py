"""Sweep files: what is read, what is refused by its name, what is listed as unused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution as Choice
from optuna.distributions import FloatDistribution as Number
from optuna.distributions import IntDistribution as Whole

from pfl.cli.explain import UsageError
from pfl.extras.sweeps.file import Early, Metric, read
from pfl.extras.sweeps.space import grid
from tests.extras.sweeps.conftest import METRIC, write
from tests.helpers.messages import parts

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_sweep_of_the_project_can_be_run_here(path):
    sweep = read(path)
    assert sweep.space.size >= 5 if sweep.method == "grid" else sweep.run_cap
    assert sweep.space.constants["loop.callbacks"] == [{"class_path": "WandB"}]
    assert sweep.unused == ["project"]


@pytest.mark.parametrize(
    ("given", "meant", "values"),
    [
        ({"values": [1, "a"]}, Choice([1, "a"]), [1, "a"]),
        ({"values": [[6, 4], {"a": 1}]}, Choice(["[6, 4]", '{"a": 1}']), [[6, 4], {"a": 1}]),
        ({"min": 1, "max": 3}, Whole(1, 3), [1, 2, 3]),
        ({"min": 1, "max": 5.0}, Number(1, 5.0), None),
        ({"min": 0, "max": 2, "distribution": "q_uniform"}, Whole(0, 2), [0, 1, 2]),
        # Multiples of the step, as with W&B, not the least value plus steps.
        ({"min": 1, "max": 9, "q": 4, "distribution": "q_uniform"}, Whole(4, 8, step=4), [4, 8]),
        (
            {"min": 0, "max": 0.3, "q": 0.1, "distribution": "q_uniform"},
            *(Number(0, 0.3, step=0.1), [0.0, 0.1, 0.2, 0.3]),
        ),
        (
            {"min": 1e-3, "max": 1, "distribution": "log_uniform_values"},
            *(Number(1e-3, 1, log=True), None),
        ),
    ],
)
def test_a_parameter_is_what_wandb_takes_it_for(given, meant, values):
    space = read(write({"a.b": given}, method="random")).space
    assert space.varied == {"a.b": meant}
    choices = grid(meant)
    if values is not None:
        found = [space.decode_one("a.b", choice) for choice in choices]
        assert (found, [*map(type, found)]) == (values, [*map(type, values)])
    assert (choices is None) == (values is None)


def test_the_last_parameter_of_a_grid_varies_fastest():
    rows = {"a": {"values": [1, 2]}, "b": {"min": 3, "max": 4}, "c": {"value": [0]}}
    space = read(write(rows)).space
    points = [space.decode(space.on_grid(number)) for number in range(space.size)]
    assert points == [{"a": a, "b": b, "c": [0]} for a in (1, 2) for b in (3, 4)]
    assert space.example() == points[0]


def test_a_number_with_an_exponent_is_a_number():
    write()
    text = Path("s.yaml").read_text().replace("0.1", "1e-3")
    Path("s.yaml").write_text(text)
    assert [*read(Path("s.yaml")).space.values.values()] == [[0.001, 0.2]]


def test_hyperband():
    for given, meant in (({"min_iter": 3}, (3, 3)), ({"min_iter": 2, "eta": 2}, (2, 2))):
        early = {"type": "hyperband", **given}
        assert read(write(early_terminate=early)).early_terminate == Early("hyperband", *meant)


def test_goal_and_target():
    assert read(write(metric={"name": "x"})).metric == Metric("x")
    metric = read(write(metric={**METRIC, "target": 0.5})).metric
    assert [metric.reached(value) for value in (0.4, 0.5)] == [False, True]
    assert not Metric("x", "maximize").reached(1.0)
    assert Metric("x", target=0.5).reached(0.4)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"job": "x"}, "s.yaml:{line}: job: ~ method, "),
        ({"method": "custom"}, "method: ~ one of grid, random, bayes ~ 'custom'"),
        ({"metric": None}, "s.yaml: ~ 'metric' ~ missing"),
        ({"metric": {**METRIC, "impute": "best"}}, "metric.impute: "),
        ({"parameters": {"a": {"value": 3}}}, "there is nothing to search"),
        ({"parameters": {"a b": {"value": 3}}}, "a b: this is not a valid name of a parameter"),
        ({"run_cap": 0}, "run_cap: ~ a whole number, at least 1 ~ 0"),
        ({"early_terminate": {"type": "envelope"}}, "early_terminate.type: ~ hyperband,"),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "strict": False}},
            "early_terminate.strict: ~ True ~ False",
        ),
        (
            {
                "metric": {"name": "test/personal/acc/mean_last10"},
                "early_terminate": {"type": "hyperband", "min_iter": 1},
            },
            "test/personal/acc/mean_last10 has no value after each round",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_its_name(keys, message):
    path = write(**keys)
    line = len(path.read_text().splitlines())
    with pytest.raises(UsageError) as caught:
        read(path)
    assert re.search(parts(message.format(line=line)), str(caught.value))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"distribution": "normal", "mu": 0}, "a.distribution: 'normal' is not supported; choo"),
        ({"min": 1, "max": 2, "step": 1}, "a.step: "),
        ({"min": 1, "max": 2, "q": 1}, "a.q: "),
        ({"min": 2, "max": 1}, "there is no value between 2 and 1"),
        ({"min": 1.1, "max": 1.9, "distribution": "q_uniform"}, "no value between 1.1 and"),
        ({"min": 0, "max": 1, "distribution": "log_uniform_values"}, "needs a positive number"),
        ({"min": 0, "max": 1, "q": 0, "distribution": "q_uniform"}, "a.q: expected a positive"),
        ({"min": 0.5, "max": 1, "distribution": "int_uniform"}, "expected whole numbers"),
        ({"values": []}, "a.values: ~ a list ~ []"),
        ({"values": [1, True]}, "a value is given twice"),
        ({}, "a: expected value, values, or min and max"),
    ],
)
def test_a_parameter_that_cannot_be_drawn(given, message):
    with pytest.raises(UsageError) as caught:
        read(write({"a": given}, method="random"))
    assert re.search(parts(message), str(caught.value))


def test_a_grid_needs_values_that_can_be_counted():
    with pytest.raises(UsageError, match=parts("s.yaml:6: parameters.a: ~ grid ~ q_uniform")):
        read(write({"a": {"min": 0.0, "max": 1.0}}))


def test_what_concerns_the_service_only_is_listed():
    assert read(write(entity="e", name="n", program="x.py")).unused == ["entity", "name", "program"]
