"""Every configuration: its first line runs it, it parses, builds its method and survives a dump."""

from __future__ import annotations

import inspect
import shlex
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from lightning_modules.base import ClientModule
from pfl.cli.config import Experiment, check_fit, fill
from pfl.core.seeds import scoped
from pfl.core.task import Classification
from pfl.training.metrics import Scorer
from tests.helpers.discovery import methods

ROOT = Path(__file__).parent.parent
FILES = (path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml"))
# Files of tables and benchmarks have tests of their own.
CONFIGS = sorted(path for path in FILES if not {"tables", "bench"} & {*path.parts})
# Classes and channels of sets of image files, which are known only once the files are there.
UNSEEN = {
    **{"SUN397": (3, 3), "ImageFolder": (1000, 3), "PACS": (7, 3), "HAM10000": (7, 3)},
    **{"DomainFolder": (10, 3), "CIFAR100Folder": (100, 3)},
}
# Classes and a sample of sets that are read from a table or text.
UNREAD = {
    "HeartDisease": (2, torch.zeros(15)),
    "MNIST1D": (10, torch.zeros(40)),
    "PyDataset": (1, torch.zeros(37)),
    "WISDM": (6, torch.zeros(43)),
    "Shakespeare": (62, torch.zeros(40, dtype=torch.int64)),
}
METHODS = methods()
COMMON = inspect.signature(ClientModule).parameters.keys()


pytestmark = pytest.mark.usefixtures("_in_the_repository")


def command(config):
    """Return the words after ``# pfl fit`` in the first line."""
    first = config.read_text(encoding="utf-8").splitlines()[0]
    words = shlex.split(first.removeprefix("#"))
    assert words[:2] == ["pfl", "fit"], f"the first line is no command: {first}"
    return words[2:]


def parse(words):
    return Experiment.parse("fit", words)


@cache
def parsed(config):
    return parse(command(config))


def model_in(config):
    return yaml.safe_load((ROOT / config).read_text(encoding="utf-8")).get("model", {})


def data_of(experiment):
    """Describe the configuration's data, without any sample."""
    values = experiment.values.data
    name = values.class_path.rpartition(".")[2]
    if name in UNSEEN:
        classes, channels = UNSEEN[name]
        size = values.init_args.image_size or 224
        sample = torch.zeros(channels, size, size)
    elif name in UNREAD:
        classes, sample = UNREAD[name]
    if name in UNSEEN | UNREAD:
        return SimpleNamespace(
            num_classes=classes,
            outputs=classes,
            input_shape=tuple(sample.shape),
            blank=lambda count: sample.expand(count, *sample.shape),
        )
    return experiment.make("data", values)


def built(experiment):
    """Build the method on the network that the data ask for."""
    data, model = data_of(experiment), experiment.values.model.clone()
    if "public_samples" in model.init_args:
        # Known only once the files of the public data are there.
        assert data.public is not None
        model.init_args.public_samples = 100
    fill(model, data)
    with scoped(0):
        module = experiment.make("model", model)
    check_fit(module, data)
    assert module.training
    return module


@pytest.mark.long
def test_the_first_line_of_every_configuration_builds_a_method_that_takes_the_data(subtests):
    """All of them are parsed, and their networks and data built: up to half a minute."""
    for config in CONFIGS:
        with subtests.test(config=str(config)):
            assert str(config) in command(config)
            experiment = parsed(config)
            assert built(experiment).plan()
            assert experiment.loop.rounds >= 1


@pytest.mark.long
def test_the_stored_text_of_every_configuration_is_the_same_experiment(subtests, tmp_path):
    """The resolved YAML that a run stores, with every default in it, is read back unchanged.

    Each of them is parsed twice: some fifteen seconds.
    """
    file = tmp_path / "config.yaml"
    for config in CONFIGS:
        with subtests.test(config=str(config)):
            stored = parsed(config).text
            file.write_text(stored, encoding="utf-8")
            assert parse(["--config", str(file)]).text == stored


@pytest.mark.parametrize("baseline", ["fedavg", "fedprox", "moon", "freeze"])
def test_a_baseline_takes_over_the_setting_it_is_laid_upon(baseline):
    setting = ["--config", "configs/univarfl_stl10.yaml", "--model.init_args.lr_schedule=cosine"]
    found = parse([*setting, "--config", f"configs/baselines/{baseline}.yaml"]).values
    own, theirs = found.model.init_args, parse(setting).values.model.init_args
    assert own.lr_schedule == "cosine"
    for name in ("net", "optimizer", "epochs", "lr_decay"):
        assert own[name] == theirs[name]


def test_a_baseline_takes_over_no_number_of_another_method():
    """The overlay sets every option that the setting's method has by the same name."""
    settings = {c: model_in(c) for c in CONFIGS if c.parent == Path("configs")}
    for overlay in (path for path in CONFIGS if path.parent.name == "baselines"):
        model = model_in(overlay)
        (kind,) = (method for method in METHODS if method.__name__ == model["class_path"])
        given = model.get("init_args") or {}
        own = {n for k in kind.__mro__ if k in METHODS for n in inspect.signature(k).parameters}
        for setting, theirs in settings.items():
            if theirs["class_path"] != kind.__name__:
                taken = own & (theirs.get("init_args") or {}).keys() - COMMON - given.keys()
                assert not taken, f"{overlay} on {setting}"


def parts_of(content):
    """Yield the keys and the words of a configuration, a table or a search, at any depth."""
    for value in content.values() if isinstance(content, dict) else content:
        if isinstance(value, dict | list):
            yield from parts_of(value)
        else:
            yield str(value)
    if isinstance(content, dict):
        yield from (f"{key}".rpartition(".")[2] + ":" for key in content)


@cache
def told(file):
    """Return the keys and words of a file, and the words of the configurations that it names."""
    found = {*parts_of(yaml.safe_load(file.read_text(encoding="utf-8")))}
    named = (home / word for home in (file.parent, ROOT) for word in found if ".yaml" in word)
    words = {word for other in {*named} if other.is_file() for word in told(other)[1]}
    keys = {part for part in found if part.endswith(":")}
    return keys, words | found - keys


def test_every_option_of_a_method_stands_in_a_configuration():
    """An option that nobody sets does not exist; an overlay of a paper is too little for one.

    A required argument is filled in from the data.
    """
    files = (path for home in ("configs", "sweeps") for path in (ROOT / home).rglob("*.yaml"))
    about = [told(file) for file in files if file.parent.name != "overlays"]
    missing = []
    for method in METHODS:
        names = {one.__name__ for one in METHODS if issubclass(one, method)}
        stated = {key for keys, words in about if words & names for key in keys}
        start = vars(method).get("__init__")
        for one in inspect.signature(start).parameters.values() if start else ():
            if one.default is not one.empty and one.name not in COMMON:
                missing += [(method.__name__, one.name)] * (f"{one.name}:" not in stated)
    assert missing == []


# What pFedVEM compares with, where the optimiser has momentum and all clients train.
COMPARED = (
    *("local", "fedavg", "fedprox", "scaffold", "fedper"),
    *("fedrep", "perfedavg", "pfedme", "ifca", "pfedbayes"),
)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("baseline", COMPARED)
def test_a_baseline_brings_along_what_it_needs_elsewhere(baseline):
    setting = "configs/pfedvem_cifar100.yaml"
    experiment = parse(["--config", setting, "--config", f"configs/baselines/{baseline}.yaml"])
    module = built(experiment)
    (rate,) = {group["lr"] for group in module.configure_optimizers().param_groups}
    assert rate == (0.001 if baseline == "pfedbayes" else 0.01)
    assert experiment.loop.sampler.train_all is (baseline != "scaffold")


def test_ham10000_reports_what_its_unequal_classes_ask_for():
    data = parsed(Path("configs/univarfl_ham10000.yaml")).values.data
    scorer = Scorer(Classification(), UNSEEN["HAM10000"][0], data.init_args.metrics)
    assert scorer.added == ("balanced_acc", "auroc")
