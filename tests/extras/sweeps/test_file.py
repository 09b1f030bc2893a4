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
from tests.extras.sweeps.conftest import METRIC, write
from tests.helpers.messages import parts

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_sweep_of_the_project_can_be_run_here(path):
    sweep = read(path)
    assert sweep.size >= 5 if sweep.method == "grid" else sweep.run_cap
    assert sweep.constants["loop.callbacks"] == [{"class_path": "WandB"}]
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
    (one,) = read(write({"a.b": given}, method="random")).varied.values()
    assert one.drawn == meant
    if values is None:
        with pytest.raises(UsageError, match=parts("s.yaml: ~ parameters.a.b: ~ grid ~ q_uniform")):
            read(write({"a.b": given}))
        return
    (one,) = read(write({"a.b": given})).varied.values()
    found = [one.decode(choice) for choice in one.drawn.choices]
    assert (found, [*map(type, found)]) == (values, [*map(type, values)])


@pytest.mark.parametrize("values", [[0.42857142857142855, 0.1], [0.12345, 0.123451]])
def test_a_list_has_short_choices_unless_they_are_alike(values):
    (one,) = read(write({"a": {"values": values}})).varied.values()
    assert [one.decode(choice) for choice in one.drawn.choices] == values
    assert one.drawn.choices in ((0.4286, 0.1), ("0.12345", "0.123451"))


def test_constants_are_apart():
    sweep = read(write({"a": {"values": [1, 2]}, "b.a": {"min": 3, "max": 4}, "c": {"value": [0]}}))
    assert (sweep.constants, sweep.size) == ({"c": [0]}, 4)
    assert sweep.point({"a": 2, "b.a": 3}) == {"a": 2, "b.a": 3}


def test_a_number_with_an_exponent_is_a_number():
    write()
    text = Path("s.yaml").read_text().replace("0.1", "1e-3")
    Path("s.yaml").write_text(text)
    assert [one.values for one in read(Path("s.yaml")).varied.values()] == [[0.001, 0.2]]


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
        ({"min": 2, "max": 1}, "low=2 ~ high=1"),
        ({"min": 1.1, "max": 1.9, "distribution": "q_uniform"}, "low=2 ~ high=1"),
        ({"min": 0, "max": 1, "distribution": "log_uniform_values"}, "low=0"),
        ({"min": 0, "max": 1, "q": 0, "distribution": "q_uniform"}, "a: ~ steps above zero"),
        ({"min": 0.5, "max": 1, "distribution": "int_uniform"}, "expected whole numbers"),
        ({"values": []}, "a: ~ different values ~ []"),
        ({"values": [1, True]}, "different values ~ [1, True]"),
        ({}, "a: uniform has the keys min, max"),
        ({"parameters": {"b": {"value": 1}}}, "a: nested ~ a.b"),
        ({"b": {"values": [1, 2]}}, "a: nested ~ a.b"),
        ({"parameters": [1]}, "a.parameters: uniform has the keys min, max"),
        ({"parameters": None}, "a.parameters: uniform has the keys min, max"),
    ],
)
def test_a_parameter_that_cannot_be_drawn(given, message):
    with pytest.raises(UsageError) as caught:
        read(write({"a": given}, method="random"))
    assert re.search(parts(message), str(caught.value))


def test_what_concerns_the_service_only_is_listed():
    assert read(write(entity="e", name="n", program="x.py")).unused == ["entity", "name", "program"]
