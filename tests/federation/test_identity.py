"""The identity of runs: the options that count, and those that do not."""

from __future__ import annotations

import inspect
import json
from collections import Counter

import pytest
import yaml

from pfl.campaign import names
from pfl.cli import catalogue
from pfl.cli.config import Experiment
from pfl.core.checks import all_annotations
from pfl.core.client import ClientModule
from pfl.core.execution import Execution
from pfl.federation import identity
from pfl.federation.settings import Settings
from pfl.imports import hints
from pfl.imports.plugins import PACKAGES

CONFIGURATION = {
    "seed": 1,
    "loop": {"rounds": 2, "engine": "auto", "callbacks": None, "seed": 1},
    "model": {
        "class_path": "lightning_modules.fedper.FedPer",
        "init_args": {
            "net": {"class_path": "lightning_modules.nets.MLP", "init_args": {"hidden": 7}},
            "epochs": 1,
            "a": [1, 2],
        },
    },
    "data": {"class_path": "datamodules.Synthetic", "init_args": {"samples": 9, "client": None}},
}
IDENTITY = {
    "seed": 1,
    "loop.rounds": 2,
    "model": "FedPer",
    "model.net": "MLP",
    "model.net.hidden": 7,
    "model.epochs": 1,
    "model.a.0": 1,
    "model.a.1": 2,
    "data": "Synthetic",
    "data.samples": 9,
}


def changed(path, value):
    """The configuration with one value changed, or added."""
    copy = json.loads(json.dumps(CONFIGURATION))
    *parents, last = path.split("/")
    place = copy
    for parent in parents:
        place = place[parent]
    place[last] = value
    return copy


def name_of(config, scale=1, noise=None):
    return names.name_of(identity.of_run(config, {"noise": noise}), scale)


# What counts.


def test_an_identity_is_flat():
    assert identity.of_run(CONFIGURATION) == IDENTITY


def test_the_name_of_a_run_tells_method_and_data_and_stays_what_it_is():
    """Runs that tables keep are found at once only under the same name."""
    assert name_of(CONFIGURATION) == "fedper_synthetic_4c997f3643e6"


SEEDS = {"seed": 2, "data/init_args/split_seed": 2}


@pytest.mark.parametrize("path", SEEDS)
def test_a_seed_makes_another_run_of_the_same_setting(path):
    other = changed(path, SEEDS[path])
    assert identity.of_run(other) != IDENTITY
    assert identity.of_setting(other) == identity.of_setting(CONFIGURATION)


def test_a_folder_or_a_file_is_known_by_its_own_name():
    def key(kind, path, option="root"):
        data = {"class_path": f"datamodules.{kind}", "init_args": {option: path}}
        return identity.of_run({**CONFIGURATION, "data": data})

    assert key("ImageFolder", "a/cats") == key("ImageFolder", "b/cats")
    assert key("ImageFolder", "a/cats") != key("ImageFolder", "a/dogs")
    assert key("CIFAR10", "a/cats") == key("CIFAR10", "a/dogs")
    named = ("TabularData", "path"), ("TimeSeries", "path"), ("Shakespeare", "path")
    for kind, option in (*named, ("TensorData", "source")):
        assert key(kind, "a/x.csv", option) == key(kind, "b/x.csv", option)
        assert key(kind, "a/x.csv", option) != key(kind, "a/y.csv", option)


def test_a_part_of_the_data_makes_another_run():
    assert name_of(CONFIGURATION, 0.1) != name_of(CONFIGURATION)


def test_settings_of_how_a_run_is_executed_do_not_count():
    """They are read from the source, and are those that the class declares."""
    declared = all_annotations(Settings)
    marks = {f"loop.{name}": [*hints.beside(hint, Execution)] for name, hint in declared.items()}
    found = identity.executing()
    assert {key: [mark] for key, mark in found.items()} == {k: v for k, v in marks.items() if v}
    of_machine = {key.removeprefix("loop.") for key, how in found.items() if how.of_machine}
    assert of_machine == {"workers", "default_root_dir", "kept_memory"}
    for key in found:
        assert identity.of_run(changed(key.replace(".", "/"), 3)) == IDENTITY


# Classes.


@pytest.mark.parametrize(
    "home", ["lightning_modules.nets.mlp.MLP", "lightning_modules.old.MLP", "datamodules.MLP"]
)
def test_a_class_of_this_project_counts_wherever_its_file_lies(home):
    moved = changed("model/init_args/net/class_path", home)
    assert identity.of_run(moved) == IDENTITY


@pytest.mark.parametrize("home", ["mine.MLP", "pfl_nets.MLP", "torch.nn.MLP"])
def test_any_other_class_counts_by_its_path(home):
    other = changed("model/init_args/net/class_path", home)
    assert identity.of_run(other) == {**IDENTITY, "model.net": home}


def test_names_of_classes_are_unique():
    """Identities know them by their names alone."""
    catalogue.load()
    classes = {kind for kind in catalogue._everything() if kind.__module__.startswith(PACKAGES)}
    counts = Counter(kind.__name__ for kind in classes if not inspect.isabstract(kind))
    assert {name for name, count in counts.items() if count > 1} == set()


# What is null.


def test_that_frozen_parts_do_not_travel_by_default_is_in_no_identity():
    """Runs that were made without the option are found again."""
    default = inspect.signature(ClientModule).parameters["travel_frozen"].default
    option = "model/init_args/travel_frozen"
    assert identity.of_run(changed(option, default)) == IDENTITY
    assert identity.of_run(changed(option, True)) != IDENTITY


@pytest.mark.parametrize(
    "path", ["loop/extra", "model/init_args/extra", "model/init_args/net/init_args/extra"]
)
def test_an_option_counts_unless_it_is_null(path):
    key = path.replace("/init_args", "").replace("/", ".")
    assert identity.of_run(changed(path, None)) == IDENTITY
    assert identity.of_run(changed(path, 3)) == {**IDENTITY, key: 3}
    assert identity.of_run(changed(path, False)) == {**IDENTITY, key: False}


def test_what_is_null_in_a_list_counts():
    """As in the widths of layers, of which one is left to the data."""
    assert identity.of_run(changed("model/init_args/a", [1, None, 2])) == {
        **{key: value for key, value in IDENTITY.items() if key != "model.a.1"},
        **{"model.a.1": None, "model.a.2": 2},
    }


# What is stored.


def test_what_is_null_comes_back_null(tmp_path):
    """FedRep's head_epochs: 10, unless it is null, which means as many as epochs."""
    file = tmp_path / "config.yaml"
    words = ["--model=FedRep", "--model.net=MLP", "--data=Digits", "--data.num_clients=2"]
    words += ["--data.partition=IID", "--model.head_epochs=null"]
    file.write_text(Experiment.parse("fit", words).text)
    again = Experiment.parse("fit", ["--config", str(file)])
    assert again.values.model.init_args.head_epochs is None
    found = identity.of_run(yaml.safe_load(file.read_text()))
    assert "model.head_epochs" not in found
    assert found["model.net"] == "MLP"


# Noise of another generator.


def test_a_run_whose_noise_was_drawn_otherwise_is_another_run():
    noises = [{"noise": noise} for noise in (None, "dice", "coins")]
    assert identity.of_run(CONFIGURATION, noises[1]) == {**IDENTITY, "model.noise": "dice"}
    settings = [identity.of_setting(CONFIGURATION, noise) for noise in noises]
    assert len({identity.digest(setting) for setting in settings}) == 3
    assert name_of(CONFIGURATION) != name_of(CONFIGURATION, noise="dice")
