"""The identity of runs: the options that count, those that do not, and those that came or went."""

from __future__ import annotations

import json

import pytest
import yaml

from pfl.campaign import names
from pfl.cli.config import Experiment
from pfl.cli.parser import make_parser
from pfl.federation import identity

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


def came_or_went(monkeypatch, **entries):
    monkeypatch.setattr(identity, "_CAME_OR_WENT", entries)


# What counts.


def test_an_identity_is_flat():
    assert identity.of_run(CONFIGURATION) == IDENTITY


def test_the_default_of_tests_counts_where_it_samples_clients():
    """Runs of earlier versions tested everybody, as those of few clients still do."""
    auto, everybody = (changed("loop/evaluate_clients", value) for value in ("auto", None))
    assert identity.of_run(auto) == identity.of_run(everybody) == IDENTITY
    marked = {**IDENTITY, "loop.evaluate_clients": "auto"}
    assert identity.of_run(auto, {"evaluated_clients": [0, 1]}) == marked
    for count, same in ((1000, True), (1001, False), ("many", True)):
        names = (changed("data/init_args/num_clients", count), auto, everybody)
        for config in names[1:]:
            config["data"]["init_args"]["num_clients"] = count
        assert (identity.of_run(auto) == identity.of_run(everybody)) is same
        assert identity.of_run(everybody) == identity.of_run(names[0])


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
    named = ("TabularData", "path"), ("HFDataset", "path"), ("WISDM", "path")
    for kind, option in (*named, ("TensorData", "source")):
        assert key(kind, "a/x.csv", option) == key(kind, "b/x.csv", option)
        assert key(kind, "a/x.csv", option) != key(kind, "a/y.csv", option)


def test_a_part_of_the_data_makes_another_run():
    assert name_of(CONFIGURATION, 0.1) != name_of(CONFIGURATION)


# What comes and goes.


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


@pytest.mark.parametrize(
    ("entry", "path", "value"),
    [
        ("model.extra", "model/init_args/extra", 3),
        ("FedPer.extra", "model/init_args/extra", 3),
        ("loop.extra", "loop/extra", [1, 2]),
        ("MLP.extra", "model/init_args/net/init_args/extra", False),
        ("data.extra", "data/init_args/extra", {"class_path": "datamodules.IID"}),
    ],
)
def test_an_option_that_came_later_counts_only_where_it_makes_a_difference(
    entry, path, value, monkeypatch
):
    same, other, unset = changed(path, value), changed(path, 9), changed(path, None)
    assert identity.of_run(same) != IDENTITY
    assert identity.of_run(unset) == IDENTITY
    came_or_went(monkeypatch, **{entry: value})
    assert identity.of_run(CONFIGURATION) == IDENTITY
    assert identity.of_run(same) == IDENTITY
    assert identity.of_run(other) != IDENTITY
    # What is switched off is not what it was before there was a switch.
    assert identity.of_run(unset) != IDENTITY


def test_an_entry_is_for_its_own_class_only(monkeypatch):
    came_or_went(monkeypatch, **{"FedAvg.epochs": 1, "MLP.epochs": 1})
    assert identity.of_run(CONFIGURATION) == IDENTITY


def test_the_same_class_is_meant_after_it_moved(monkeypatch):
    """Of an option whose value is a class."""
    came_or_went(monkeypatch, **{"data.extra": {"class_path": "datamodules.partition.IID"}})
    moved = changed("data/init_args/extra", {"class_path": "datamodules.who.IID", "init_args": {}})
    assert identity.of_run(moved) == IDENTITY


def test_an_option_that_went_counts_where_it_made_a_difference(monkeypatch):
    came_or_went(monkeypatch, **{"model.epochs": 1, "model.a": None})
    found = identity.of_run(CONFIGURATION)
    assert "model.epochs" not in found
    assert found["model.a.0"] == 1
    assert identity.of_run(changed("model/init_args/epochs", 2))["model.epochs"] == 2


# What is stored.


def test_what_is_null_comes_back_null(tmp_path):
    """FedRep's head_epochs: 10, unless it is null, which means as many as epochs."""
    parser, file = make_parser("fit"), tmp_path / "config.yaml"
    words = ["--model=FedRep", "--model.net=MLP", "--data=Digits", "--data.num_clients=2"]
    words += ["--data.partition=IID", "--model.head_epochs=null"]
    file.write_text(Experiment.parse(parser, words).text)
    again = Experiment.parse(parser, ["--config", str(file)])
    assert again.values.model.init_args.head_epochs is None
    found = identity.of_run(yaml.safe_load(file.read_text()))
    assert "model.head_epochs" not in found
    assert found["model.net"] == "MLP"


# Noise of another generator.


def test_a_run_whose_noise_was_drawn_otherwise_is_another_run():
    """Runs from before generators were named have the identity that they had."""
    noises = [{"noise": noise} for noise in (None, "dice", "coins")]
    assert identity.of_run(CONFIGURATION, noises[1]) == {**IDENTITY, "model.noise": "dice"}
    settings = [identity.of_setting(CONFIGURATION, noise) for noise in noises]
    assert len({identity.digest(setting) for setting in settings}) == 3
    assert name_of(CONFIGURATION) != name_of(CONFIGURATION, noise="dice")
