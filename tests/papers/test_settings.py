"""Settings that belong together: a paper's tables, and what is laid over its configurations."""

from functools import cache
from pathlib import Path

import pytest

from pfl.config import Experiment
from pfl.parser import make_parser
from pfl.tables.cells import expand
from pfl.tables.plan import parse, plan
from pfl.tables.reader import read

CONFIGS = Path(__file__).parents[2] / "configs"
OPTIONS = "model.init_args"


@cache
def parser():
    return make_parser("table")


@cache
def table(name):
    return read(CONFIGS / "tables" / f"{name}.yaml")


def laid(*names):
    """Configurations one over another, by their paths below ``configs``."""
    words = [word for name in names for word in ("--config", str(CONFIGS / f"{name}.yaml"))]
    return Experiment.parse(make_parser("fit"), words)


def cells(name, row, *columns):
    return expand(table(name), [row], columns)


def values(name, row, *columns):
    """Resolved settings of the first such cell."""
    return parse(parser(), table(name), cells(name, row, *columns)[0]).values


def runs(name, row, *columns):
    """Names of the runs behind some cells, at the table's first seed."""
    found = table(name)
    return list(plan(found, cells(name, row, *columns), found.seeds[:1]).runs)


SHIPPED = [path.stem for path in sorted(CONFIGS.glob("*.yaml"))]


@pytest.mark.parametrize(
    ("config", "profile"),
    [
        (config, profile)
        for method, profile in (
            ("fedas", "fedas_as_released"),
            ("pfedvem", "pfedvem_as_released"),
            ("univarfl", "univarfl_as_printed"),
            ("fedsimsup", "fedsimsup_as_printed"),
        )
        for config in SHIPPED
        if config.startswith(method)
    ],
)
def test_a_method_is_configured_by_this_profile(config, profile):
    """Laid over the configuration, it changes nothing."""
    assert laid(config).text == laid(config, f"overlays/{profile}").text


@pytest.mark.parametrize("config", [name for name in SHIPPED if name.startswith("pfakd")])
def test_pfakds_configurations_are_between_its_profiles(config):
    printed, released = (
        laid(config, f"overlays/{config}_as_{way}").values[OPTIONS]
        for way in ("printed", "released")
    )
    shipped = laid(config).values[OPTIONS]
    assert shipped.distill_reduction == released.distill_reduction != printed.distill_reduction
    assert shipped.weighting == released.weighting != printed.weighting
    assert shipped.lr_decay == printed.lr_decay != released.lr_decay
    assert shipped.persist_optimizer == printed.persist_optimizer != released.persist_optimizer


def test_fedas_with_neither_module_is_fedper_of_its_other_table():
    """The paper prints one row in both tables; so the runs are the same, and so is what is told."""
    ablation, whole = runs("fedas_table4", "neither"), runs("fedas_table3", "FedPer", "beta=0.1")
    assert ablation == whole
    told = [
        [cell.reported.value for cell in found]
        for found in (cells("fedas_table4", "neither"), cells("fedas_table3", "FedPer", "beta=0.1"))
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["fedas_table2", "fedas_table3"])
@pytest.mark.parametrize("row", ["FedAvg-P", "FedProx-P"])
def test_the_tuned_rows_of_fedas_are_what_its_code_tests(name, row):
    assert values(name, row)[OPTIONS].p_mode == "participants_only"
    described = cells(name, f"{row}, all tuned")
    assert values(name, f"{row}, all tuned")[OPTIONS].p_mode == "all_clients"
    assert {cell.reported for cell in described} == {None}


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
def test_one_rate_for_all_methods_is_that_of_fedpacs_head_too(name, row, rate):
    options = values(name, row)[OPTIONS]
    assert options.head_lr == options.optimizer.init_args.lr == rate


def test_without_synchronisation_the_release_and_the_paper_weigh_differently():
    assert values("fedas_table4", "PA alone")[OPTIONS].weighting == "samples"
    assert values("fedas_table4", "PA alone, plain mean")[OPTIONS].weighting == "uniform"


# pFedVEM.

PFEDVEM = ["pfedvem_cifar10", "pfedvem_cifar100", "pfedvem_fmnist", "pfedvem_sun397"]
COMPARED = {"Fashion-MNIST": 0.001, "CIFAR-10": 0.001, "CIFAR-100": 0.01, "SUN397": 0.01}


@pytest.mark.parametrize("config", PFEDVEM)
def test_other_methods_inherit_fedavgs_rate_which_pfedvems_base_has(config):
    options = laid(config).values[OPTIONS]
    assert options.optimizer.init_args.lr == options.lr_base


@pytest.mark.parametrize("config", PFEDVEM)
def test_pfedvem_as_printed_differs_in_one_number(config):
    shipped = laid(config).text
    printed = laid(config, "overlays/pfedvem_as_printed").text
    assert "minimum: 0" in printed
    assert printed.replace("minimum: 0", "minimum: 2") == shipped


def step(options):
    """Length of a step along an unchanging gradient, in the long run."""
    given = options.optimizer.init_args
    return given.lr / (1 - (given.get("momentum") or 0))


@pytest.mark.parametrize(("data", "rate"), COMPARED.items())
@pytest.mark.parametrize("row", ["FedAvg GM", "Scaffold GM", "PerFedAvg PM", "FedRep PM"])
def test_methods_compared_with_pfedvem_take_equal_steps(row, data, rate):
    options = values("pfedvem_table1", row, data, "J=100")[OPTIONS]
    assert step(options) == pytest.approx(rate / 0.1)
    assert options.get("body_epochs", options.epochs) == options.epochs == 5
