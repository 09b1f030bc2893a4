"""Rows of the papers' tables: each compares like with like."""

from functools import cache

import pytest

from pfl.cli import catalogue
from pfl.extras.papers.cells import expand
from pfl.extras.papers.plan import parse, plan
from pfl.extras.papers.reader import read
from tests.papers.resolved import CONFIGS, OPTIONS, laid
from tests.test_configs import built


@cache
def table(name):
    homes = (CONFIGS / "tables", CONFIGS.parent / "examples" / "tables")
    (file,) = (home / f"{name}.yaml" for home in homes if (home / f"{name}.yaml").is_file())
    return read(file)


def cells(name, row, *columns):
    return expand(table(name), [row], columns or None)


def options(name, row, *columns):
    """Return the method's settings in the first such cell."""
    return parse(table(name), cells(name, row, *columns)[0]).values[OPTIONS]


def runs(name, row, *columns):
    """Return the names of the runs behind some cells, at the table's first seed."""
    found = table(name)
    return list(plan(found, cells(name, row, *columns), found.seeds[:1]).runs)


# The point at which personal models are tested.


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "own", "rows"),
    [
        ("fedas_table3", "FedAS", ["FedPer"]),
        ("fedas_table4", "PA and CS", ["neither"]),
        ("pfakd_table1", "PFAKD", ["FedPer", "FedRep"]),
        ("pfedvem_table1", "pFedVEM PM", ["FedPer PM", "FedRep PM"]),
        ("pfedvem_data_size", "pFedVEM", ["FedPer", "FedRep"]),
        ("fedsimsup_table2", "FedSimSup", ["FedRep"]),
    ],
)
def test_rows_whose_model_a_broadcast_changes_are_tested_where_the_papers_own_is(name, own, rows):
    assert {point(name, row) for row in rows} == {point(name, own)}


def point(name, row):
    values = parse(table(name), cells(name, row)[0]).values
    # A property is the base's, where no option decides.
    declared = catalogue.find(values.model.class_path).evaluate_at
    default = "post_broadcast" if isinstance(declared, property) else declared
    return (values.loop.evaluate_at or [default])[0]


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


# FedSimSup.

KINDS = [f"FedSimSup-{kinds}" for kinds in ("T", "C", "L", "TCL")]


@pytest.mark.long
def test_kinds_of_supervisors_are_rows_of_one_run():
    """The paper's -T, -C and -L are means over the clients of each kind in the run of -TCL."""
    column = ("CIFAR-10", "alpha=0.1", "n=100")
    assert len({name for row in KINDS for name in runs("fedsimsup_table4", row, *column)}) == 1
    assert runs("fedsimsup_table4", "FedSimSup", *column) == runs(
        "fedsimsup_table2", "FedSimSup", *column
    )
    found = options("fedsimsup_table4", "FedSimSup-TCL", *column)
    kinds = [item.class_path.rpartition(".")[2] for item in found.supervisor]
    assert found.supervisor_draw == "random"
    metrics = [cells("fedsimsup_table4", row, *column)[0].metric for row in KINDS]
    assert metrics == [f"test/personal/acc@{kind}" for kind in kinds] + ["test/personal/acc"]
    told = [cells("fedsimsup_table4", row, *column)[0].reported.value for row in KINDS]
    assert told == [0.898, 0.835, 0.851, 0.861]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "data", "classes", "alphas"),
    [
        ("fedsimsup_table1", "FEMNIST", 62, [0.1]),
        ("fedsimsup_table1", "ImageNet", 1000, [0.1]),
        ("fedsimsup_table2", "CIFAR-10", 10, [0.1, 0.5]),
        ("fedsimsup_table2", "CIFAR-100", 100, [0.1, 0.5]),
        ("fedsimsup_table4", "CIFAR-10", 10, [0.1, 0.5]),
        ("fedsimsup_table4", "CIFAR-100", 100, [0.1, 0.5]),
    ],
)
def test_clients_of_equal_size_have_the_papers_alpha_for_each_class(name, data, classes, alphas):
    """As the paper cites it; the other columns keep the shipped way, and so the same runs."""
    for alpha in alphas:
        axis = [f"alpha={alpha}"] * (len(alphas) > 1)
        first, second = (
            parse(table(name), cells(name, "FedSimSup", label, *axis)[0]).values[
                "data.init_args.partition"
            ]
            for label in (data, f"{data}, by client")
        )
        assert first.class_path.endswith(".Dirichlet")
        assert first.init_args.alpha == alpha
        assert second.class_path.endswith(".ClientDirichlet")
        assert second.init_args.alpha == pytest.approx(classes * alpha)


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


# Experiments whose cells differ in more than one setting.


@pytest.mark.parametrize("name", ["fedas_figure7_batch", "fedas_figure7_epochs"])
def test_batches_and_epochs_are_compared_at_equal_numbers_of_steps(name):
    """40 rounds of 5 epochs in batches of 16 are FedAS's own: 40 * 5 / 16 steps a sample."""
    own = {"model.init_args.epochs": 5, "data.init_args.batch_size": 16}
    steps = set()
    for row in table(name).row_settings.values():
        values = {**own, **row.set}
        trained = values["loop.rounds"] * values["model.init_args.epochs"]
        steps.add(trained / values["data.init_args.batch_size"])
    assert steps == {12.5}


@pytest.mark.parametrize(
    ("name", "row", "column", "parameters"),
    [
        ("pfakd_networks", "PFAKD", "Fashion-MNIST, three convolutions", 31_690),
        ("pfakd_networks", "PFAKD", "CIFAR-10, fc_block", 27_168 + 17_098),
        # 63,092 and a supervisor of 10,824; in turns 59,814 and a head of 14,300.
        ("fedsimsup_figure4", "parallel", None, 73_916),
        ("fedsimsup_figure4", "serial", None, 74_114),
        ("fedsimsup_figure4", "FedRep", None, 74_114),
    ],
)
def test_networks_have_the_sizes_that_files_and_notes_tell(name, row, column, parameters):
    columns = [] if column is None else [column]
    module = built(parse(table(name), cells(name, row, *columns)[0]))
    assert sum(value.numel() for value in module.parameters()) == parameters


def test_searches_have_the_papers_ranges():
    told = {
        "pfakd_beta": ("distill_weight", [0.1, 0.5, 1, 5, 10]),
        "pfakd_fedpac": ("alignment", [0.001, 0.01, 0.1, 1, 5, 10]),
        "pfakd_gpfl": ("magnitude_weight", [0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10]),
    }
    for name, (option, values) in told.items():
        key = f"model.init_args.{option}"
        assert [row.set[key] for row in table(name).row_settings.values()] == values
    (_, mu) = table("pfakd_gpfl").axes.values()
    assert [float(label) for label in mu] == told["pfakd_gpfl"][1]
