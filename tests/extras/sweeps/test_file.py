"""Sweep files: what is read, what is refused by its name, what is listed as unused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pfl.cli.explain import UsageError
from pfl.extras.sweeps.file import Early, Metric, read
from pfl.extras.sweeps.space import Categorical, Range
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
    ("given", "meant"),
    [
        ({"values": [1, "a"]}, Categorical([1, "a"])),
        ({"values": [1], "distribution": "categorical"}, Categorical([1])),
        ({"values": [1, 2], "probabilities": [3, 1]}, Categorical([1, 2], [0.75, 0.25])),
        ({"min": 1, "max": 5}, Range(1, 5, whole=True)),
        ({"min": 1, "max": 5.0}, Range(1, 5.0)),
        ({"min": 1, "max": 5, "distribution": "uniform"}, Range(1, 5)),
        ({"min": 0, "max": 5, "distribution": "q_uniform"}, Range(0, 5, whole=True, step=1)),
        ({"min": 0, "max": 1, "q": 0.1, "distribution": "q_uniform"}, Range(0, 1, step=0.1)),
        ({"min": 0, "max": 0, "distribution": "log_uniform"}, Range(1.0, 1.0, log=True)),
        ({"min": 1e-3, "max": 1, "distribution": "log_uniform_values"}, Range(1e-3, 1, log=True)),
        (
            {"min": 2, "max": 9, "q": 2, "distribution": "q_log_uniform_values"},
            Range(2, 9, whole=True, log=True, step=2),
        ),
    ],
)
def test_a_parameter_is_what_wandb_takes_it_for(given, meant):
    assert read(write({"a.b": given}, method="random")).space.varied == {"a.b": meant}


def test_groups_of_parameters_give_dotted_names():
    inner = {"lr": {"values": [1, 2]}, "c": {"value": None}}
    space = read(write({"a": {"parameters": {"b": {"parameters": inner}}}})).space
    assert list(space.varied) == ["a.b.lr"]
    assert space.constants == {"a.b.c": None}


def test_a_number_with_an_exponent_is_a_number():
    write()
    text = Path("s.yaml").read_text().replace("0.1", "1e-3")
    Path("s.yaml").write_text(text)
    assert next(iter(read(Path("s.yaml")).space.varied.values())).values == [0.001, 0.2]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"min_iter": 3}, Early(3, 3)),
        ({"min_iter": 2, "eta": 2, "strict": True}, Early(2, 2)),
        # W&B: 27 / 3, 27 / 9.
        ({"max_iter": 27, "s": 2}, Early(3, 3, 27)),
        # 10 / 4 is 2; 10 / 16 is less than one.
        ({"max_iter": 10, "s": 5, "eta": 4}, Early(2, 4, 10)),
    ],
)
def test_hyperband(given, meant):
    assert read(write(early_terminate={"type": "hyperband", **given})).early == meant


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
        (
            {"parameters": {"model.init_args.lr": {"vales": [1, 2]}}},
            "s.yaml:7: parameters.model.init_args.lr.vales: ",
        ),
        ({"metod": "grid"}, "metod: ~ 'method'"),
        ({"method": "custom"}, "method: ~ one of grid, random, bayes ~ 'custom'"),
        ({"method": None}, "s.yaml: ~ 'method' ~ missing"),
        ({"metric": None}, "s.yaml: ~ 'metric' ~ missing"),
        ({"metric": {**METRIC, "impute": "best"}}, "metric.impute: "),
        ({"metric": {"name": "x", "goal": "max"}}, "metric.goal: ~ minimize, maximize"),
        ({"metric": {"name": "x", "target": "y"}}, "metric.target: ~ number ~ 'y'"),
        ({"parameters": {"a": 3}}, "parameters.a: ~ keys and values ~ 3"),
        ({"parameters": {"a": {"value": 3}}}, "there is nothing to search"),
        ({"parameters": {"a b": {"value": 3}}}, "a b: this is not a valid name of a parameter"),
        ({"run_cap": 0}, "run_cap: ~ a whole number, at least 1 ~ 0"),
        ({"command": "pfl fit"}, "command: ~ a list ~ 'pfl fit'"),
        ({"early_terminate": {"type": "envelope"}}, "early_terminate.type: ~ hyperband,"),
        ({"early_terminate": {"type": "hyperband"}}, "give either min_iter, or max_iter and s"),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "eta": 1.5}},
            "early_terminate.eta: ~ a whole number, at least 2 ~ 1.5",
        ),
        (
            {"early_terminate": {"type": "hyperband", "max_iter": 2, "s": 1}},
            "max_iter must be at least eta, which is 3",
        ),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "strict": False}},
            "early_terminate.strict: false is not supported",
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
        ({"distribution": "beta"}, "'beta' is not supported"),
        ({"min": 1, "max": 2, "step": 1}, "a.step: "),
        ({"min": 1}, "a: ~ 'max' ~ missing"),
        ({"min": 1, "max": 2, "q": 1}, "a.q: "),
        ({"min": 2, "max": 1}, "there is no value between 2 and 1"),
        ({"min": 1.1, "max": 1.9, "distribution": "q_uniform"}, "no value between 1.1 and"),
        ({"min": 0, "max": 1, "distribution": "log_uniform_values"}, "needs a positive number"),
        ({"min": 0, "max": "x"}, "a.max: ~ number ~ 'x'"),
        ({"min": 0, "max": 1, "q": 0, "distribution": "q_uniform"}, "a.q: expected a positive"),
        ({"min": 0.5, "max": 1, "distribution": "int_uniform"}, "expected whole numbers"),
        ({"values": []}, "a.values: ~ a list ~ []"),
        ({"values": [1, True]}, "a value is given twice"),
        ({"values": [1, 2], "probabilities": [1]}, "expected 2 numbers of at least 0, one"),
        ({"distribution": "uniform"}, "a: ~ 'min' ~ missing"),
        ({"parameters": {"b": {"value": 1}}, "value": 2}, "a.parameters: this key is not"),
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
    with pytest.raises(UsageError, match=parts("s.yaml:6: parameters.a: ~ grid ~ probabilities")):
        read(write({"a": {"values": [1, 2], "probabilities": [1, 1]}}))


def test_what_concerns_the_service_only_is_listed():
    assert read(write(entity="e", name="n", program="x.py")).unused == ["entity", "name", "program"]


def test_a_missing_file_has_a_near_one():
    write(file="sweep.yaml")
    with pytest.raises(UsageError, match=parts("swep.yaml ~ 'sweep.yaml'")):
        read(Path("swep.yaml"))
