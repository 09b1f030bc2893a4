import pytest

from pfl.cli.explain import UsageError
from pfl.core.space import Dimension
from pfl.extras.bench.task import read
from tests.extras.bench.conftest import EPOCHS, LR, bench, task
from tests.helpers.messages import parts


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
        ({"shared": {}}, "toys.yaml:3: shared: ~ at least one dimension"),
        ({"budget": 3}, "toys.yaml:12: budget: ~ caption, config"),
        (
            {"shared": {LR: {"low": 2.0, "high": 1.0}}},
            "toys.yaml:4: shared.model ~ lr: ~ low < high ~ 2.0 and 1.0",
        ),
        ({"shared": {LR: {"low": "a", "high": 1.0}}}, "toys.yaml:5: ~ lr.low: ~ number ~ 'a'"),
        ({"tuning_seeds": [1, 1]}, "toys.yaml:12: tuning_seeds: ~ different ~ [1, 1]"),
        ({"tuning_seeds": [-1]}, "toys.yaml:13: tuning_seeds.0: ~ at least 0 ~ -1"),
        ({"config": "nowhere"}, "toys.yaml:2: config: nowhere: ~ pfl init"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, keys, message):
    with pytest.raises(UsageError, match=parts(message)):
        read(task(tmp_path, **keys))


def test_tuning_seeds_and_final_seeds_are_disjoint(tmp_path):
    with pytest.raises(UsageError, match=parts("tuning_seeds: 1 ~ final seed")):
        bench(task(tmp_path, tuning_seeds=[1, 9]), tmp_path)


def test_a_task_is_known_by_what_its_numbers_depend_on(tmp_path):
    same = bench(task(tmp_path, caption="Other words"), tmp_path).task_hash
    assert bench(task(tmp_path), tmp_path).task_hash == same
    seeded = {"seeded": ["data.init_args.samples"]}
    for keys in ({"tuning_seeds": [9]}, {"set": {"loop.rounds": 5}}, {"score": "loss"}, seeded):
        assert bench(task(tmp_path, **keys), tmp_path).task_hash != same
