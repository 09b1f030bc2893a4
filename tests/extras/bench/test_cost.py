import pytest

from pfl.extras.bench.cost import RunCost
from tests.extras.bench.conftest import bench, task

SEED = 1001


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Return a function that gives a method's cost in processed samples."""
    folder = tmp_path_factory.mktemp("cost")
    made = bench(task(folder), folder, "Ditto", "PFedMe", "FedRep", "LPFT")

    def cost(name, **settings):
        (one,) = (c for c in made.contenders if c.name == name)
        keys = {f"model.init_args.{key}": value for key, value in settings.items()}
        _, engine = made.runner._counted(one, SEED, keys)
        return engine.cost.in_units(made.budgets[SEED].operations)

    cost.budget = made.budgets[SEED]
    return cost


@pytest.mark.long
def test_the_reference_spends_the_budget_in_its_rounds(counted):
    """90 samples, of which a quarter (23) are for testing and 30 % of the rest for validation.

    Three clients of 30: 8 tested, 7 validated, 15 trained on; four rounds of 45 samples.
    """
    assert counted.budget.samples == 4 * 45
    cost = counted("FedAvg")
    assert (cost.first, cost.later, cost.adapting) == (45, 45, 0)
    assert cost.rounds(counted.budget.samples) == 4


def test_epochs_pay_each_time(counted):
    assert counted("FedAvg", epochs=2).rounds(counted.budget.samples) == 2


def test_a_second_network_pays(counted):
    assert counted("Ditto").later == 2 * 45


def test_an_inner_loop_pays(counted):
    assert counted("PFedMe", inner_steps=3).later == 3 * 45


def test_adapting_before_the_test_pays_once(counted):
    cost = counted("FedAvgP", ft_epochs=3)
    assert (cost.later, cost.adapting) == (45, 3 * 45)
    assert cost.rounds(counted.budget.samples) == 1


def test_a_frozen_part_pays_its_forward_pass_alone(counted):
    """More head epochs cost less than as many of the whole network, but not nothing."""
    one, ten = (counted("FedRep", head_epochs=epochs).later for epochs in (1, 10))
    assert 0 < ten - one < 9 * 45


def test_a_budget_buys_whole_rounds():
    cost = RunCost(first=2, later=3, adapting=1)
    assert [cost.rounds(budget) for budget in (2.9, 3, 5.9, 6, 9)] == [0, 1, 1, 2, 3]
    assert cost.of(3) == 9
