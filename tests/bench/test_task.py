import pytest

from pfl.bench.task import read
from pfl.cli.explain import UsageError
from pfl.core.space import Dimension
from tests.bench.conftest import EPOCHS, LR, bench, task


def test_a_file_becomes_a_task(tmp_path):
    toys = read(task(tmp_path, tuning_seeds=[7, 8], score="loss", notes=["One."]))
    assert toys.name == "toys"
    assert toys.configs == (tmp_path / "c.yaml",)
    assert toys.dimensions == (
        Dimension(LR, 0.01, 1.0, log=True),
        Dimension(EPOCHS, choices=(1, 2)),
    )
    assert (toys.tuning_seeds, toys.score, toys.notes) == ([7, 8], "loss", ["One."])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"caption": None}, "the key 'caption' is missing"),
        ({"shared": {}}, "a task needs dimensions that all methods share"),
        ({"budget": 3}, r"toys.yaml:\d+: budget: this key is not supported"),
        ({"shared": {LR: {"lo": 1}}}, r"toys.yaml:\d+: .*this key is not supported.*'low'"),
        ({"shared": {LR: {"low": 2.0, "high": 1.0}}}, r"toys.yaml:\d+: .*expected low < high"),
        ({"shared": {LR: {"low": "a", "high": 1.0}}}, "expected a number, got 'a'"),
        ({"shared": {LR: 0.1}}, "expected keys and values, got 0.1"),
        ({"tuning_seeds": [1, 1]}, "expected one seed or several different ones"),
        ({"tuning_seeds": [-1]}, "expected a whole number, at least 0, got -1"),
        ({"methods": {"Ditto": 3}}, "methods.Ditto: expected keys and values, got 3"),
        ({"score": 3}, "expected a text, got 3"),
        ({"config": "nowhere"}, "there is no such file or shipped configuration"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, keys, message):
    with pytest.raises(UsageError, match=message):
        read(task(tmp_path, **keys))


def test_tuning_seeds_and_final_seeds_are_disjoint(tmp_path):
    with pytest.raises(UsageError, match="tuning_seeds: 1 is also a final seed"):
        bench(task(tmp_path, tuning_seeds=[1, 9]), tmp_path)


def test_a_task_is_known_by_what_its_numbers_depend_on(tmp_path):
    same = bench(task(tmp_path, caption="Other words"), tmp_path).task_hash
    assert bench(task(tmp_path), tmp_path).task_hash == same
    for keys in ({"tuning_seeds": [9]}, {"set": {"loop.rounds": 5}}, {"score": "loss"}):
        assert bench(task(tmp_path, **keys), tmp_path).task_hash != same
