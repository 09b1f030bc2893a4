"""Rows of the papers' tables: each compares like with like."""

from functools import cache

import pytest

from pfl.cli.parser import make_parser
from pfl.tables.cells import expand
from pfl.tables.plan import parse, plan
from pfl.tables.reader import read
from tests.papers.resolved import CONFIGS, OPTIONS, laid


@cache
def parser():
    return make_parser("table")


@cache
def table(name):
    return read(CONFIGS / "tables" / f"{name}.yaml")


def cells(name, row, *columns):
    return expand(table(name), [row], columns)


def options(name, row, *columns):
    """Return the method's settings in the first such cell."""
    return parse(parser(), table(name), cells(name, row, *columns)[0]).values[OPTIONS]


def runs(name, row, *columns):
    """Return the names of the runs behind some cells, at the table's first seed."""
    found = table(name)
    return list(plan(found, cells(name, row, *columns), found.seeds[:1]).runs)


# FedAS.


def test_fedas_with_neither_module_is_fedper_of_its_other_table():
    """The paper prints one row in both tables; so the runs are the same, and so is what is told."""
    ablation, whole = ("fedas_table4", "neither"), ("fedas_table3", "FedPer", "beta=0.1")
    assert runs(*ablation) == runs(*whole)
    told = [[cell.reported.value for cell in cells(*row)] for row in (ablation, whole)]
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["fedas_table2", "fedas_table3"])
@pytest.mark.parametrize("row", ["FedAvg-P", "FedProx-P"])
def test_the_tuned_rows_of_fedas_are_what_its_code_tests(name, row):
    assert options(name, row).p_mode == "participants_only"
    described = f"{row}, all tuned"
    assert options(name, described).p_mode == "all_clients"
    assert {cell.reported for cell in cells(name, described)} == {None}


def test_without_synchronisation_the_release_and_the_paper_weigh_differently():
    assert options("fedas_table4", "PA alone").weighting == "samples"
    assert options("fedas_table4", "PA alone, plain mean").weighting == "uniform"


# One rate for all methods.


@pytest.mark.parametrize(
    ("name", "row", "rate"),
    [
        ("fedas_table2", "FedPAC", 0.005),
        ("fedas_table3", "FedPAC", 0.005),
        ("pfakd_table1", "FedPAC", 0.01),
        ("fedsimsup_table1", "FedPac", 0.01),
        ("fedsimsup_table2", "FedPac", 0.01),
        ("fedsimsup_table3", "FedPac", 0.01),
    ],
)
def test_fedpacs_head_has_the_one_rate_of_all_methods(name, row, rate):
    found = options(name, row)
    assert found.head_lr == found.optimizer.init_args.lr == rate


def test_fedrep_has_pfakds_epochs_in_all_and_fewer_of_the_body():
    found = options("pfakd_table1", "FedRep", "CIFAR-10", "E=20")
    assert (found.epochs, found.head_epochs, found.body_epochs) == (20, None, 1)


@pytest.mark.parametrize(
    "config", ["pfedvem_cifar10", "pfedvem_cifar100", "pfedvem_fmnist", "pfedvem_sun397"]
)
def test_other_methods_inherit_fedavgs_rate_which_pfedvems_base_has(config):
    found = laid(config).values[OPTIONS]
    assert found.optimizer.init_args.lr == found.lr_base


def step(found):
    """Return the length of a step along an unchanging gradient, in the long run."""
    given = found.optimizer.init_args
    return given.lr / (1 - (given.get("momentum") or 0))


@pytest.mark.parametrize(
    ("data", "rate"),
    [("Fashion-MNIST", 0.001), ("CIFAR-10", 0.001), ("CIFAR-100", 0.01), ("SUN397", 0.01)],
)
@pytest.mark.parametrize("row", ["FedAvg GM", "Scaffold GM", "PerFedAvg PM", "FedRep PM"])
def test_methods_compared_with_pfedvem_take_equal_steps(row, data, rate):
    found = options("pfedvem_table1", row, data, "J=100")
    assert step(found) == pytest.approx(rate / 0.1)
    assert found.get("body_epochs", found.epochs) == found.epochs == 5
