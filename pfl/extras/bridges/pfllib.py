"""``pfl from-pfllib``: the command here that runs what a command of PFLlib runs.

The options and their defaults are those of PFLlib's ``main.py`` (Zhang et al., JMLR 2025).
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

from pfl.cli.explain import UsageError
from pfl.cli.kinds import METHOD
from pfl.disk.nearest import nearest
from pfl.imports import modules, signatures, stubs

# Short options and the long ones that mean the same.
_LONG = {
    **{"dataset": "data", "model": "m", "batch_size": "lbs", "local_learning_rate": "lr"},
    **{"global_rounds": "gr", "local_epochs": "ls", "algorithm": "algo", "join_ratio": "jr"},
    **{"num_clients": "nc", "eval_gap": "eg", "times": "t", "learning_rate_decay": "ld"},
    **{"learning_rate_decay_gamma": "ldg", "device": "dev", "device_id": "did", "goal": "go"},
    **{"num_classes": "ncl", "plocal_epochs": "pls", "tau": "tau"},
}
# What PFLlib takes where nothing is given.
_DEFAULTS = {
    **{"data": "MNIST", "m": "CNN", "lbs": "10", "lr": "0.005", "gr": "2000", "ls": "1"},
    **{"algo": "fedavg", "jr": "1.0", "nc": "20", "eg": "1", "t": "1"},
}
# Options with one counterpart, and what it is called here.
_SAID = {
    **{"gr": "loop.rounds", "jr": "loop.sampler.fraction", "eg": "loop.evaluate_every"},
    **{"lbs": "data.batch_size", "lr": "model.optimizer.lr", "ls": "model.epochs"},
}
# Those of single methods, and what they may be called in a method here.
_OF = {"mu": ("mu", "proximity"), "tau": ("tau",), "pls": ("personal_epochs",)}
_NETWORKS = {"cnn": "CNN2", "dnn": "MLP", "resnet18": "ResNet18", "resnet": "ResNet18"}
# The folders that PFLlib's generators write.
_DATA = (
    *("MNIST", "EMNIST", "FEMNIST", "FashionMNIST", "Cifar10", "Cifar100", "TinyImagenet"),
    *("Omniglot", "Digit5", "DomainNet", "AGNews", "SogouNews", "Shakespeare", "AmazonReview"),
    *("HAR", "PAMAP2", "iWildCam", "Camelyon17", "COVIDx", "kvasir", "Flowers102", "GTSRB"),
    *("Country211", "StanfordCars"),
)
# Where, what it is called and how often change no result.
_NO_MATTER = {"dev", "did", "go", "ncl", "nb", "sfn", "nc", "data", "m", "algo", "t", "pv"}
_NOTES = (
    "PFLlib reports the best round on its test data, over all test samples: the column "
    "test/personal/acc_weighted of metrics.csv, best_on_test (a fair number is its last round).",
    "Its iteration i, counted from 0, is tested before training: here it is round i.",
)


def translate(options: argparse.Namespace) -> None:
    """Print the command, and what of it cannot be said.

    Raises:
        UsageError: The command is not one of PFLlib's, or asks for a method that is not here.
    """
    given = _given(options.command)
    settings = {**_DEFAULTS, **given}
    folder = options.dataset / settings["data"]
    if not folder.is_dir():
        _check_data(settings["data"], folder)
    command = ["pfl fit", *_flags(settings, options.dataset)]
    if int(settings["t"]) > 1:
        command.append("--seed=$seed")
        print(f"for seed in $(seq {settings['t']}); do")
    print(" \\\n  ".join(command))
    if int(settings["t"]) > 1:
        print("done")
    for line in _left_out(given, settings["algo"]):
        print(f"cannot be said: {line}")
    for line in _NOTES:
        print(f"note: {line}")
    if not folder.is_dir():
        print(f"note: there is no folder {folder} yet: give PFLlib's folder dataset as --dataset.")


def _check_data(name: str, folder: Path) -> None:
    """Refuse data that are not there, and are misspelt.

    Raises:
        UsageError: No generator of PFLlib writes a folder of this name, but one of a similar name.
    """
    # Folders of several partitions are often called MNIST-0.1, and older generators wrote mnist.
    base = re.split(r"[-_.]", name)[0].lower()
    known = any(base == one.lower() for one in _DATA)
    if not known and (near := nearest(name, _DATA)):
        raise UsageError(f"-data {name}: there is no folder {folder}{near}")


def _given(command: str) -> dict[str, str]:
    """Return the options of a command, by their short names."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{command}: {error}") from None
    script = next((n for n, word in enumerate(words) if word.endswith(".py")), -1)
    if Path(words[script] if words else "").name.startswith("generate_"):
        raise UsageError(
            f"{command}: run it in PFLlib; data: PFLlibFolder reads what it writes, and "
            "partition: PFLlibDirichlet divides other data in this way"
        )
    # What follows is the shell's: > result.out 2>&1 &
    words = [*takewhile(lambda word: not re.match(r"\d?[>&|;]", word), words[script + 1 :])]
    if len(words) % 2 or not all(word.startswith("-") for word in words[::2]):
        raise UsageError(
            f'{command}: PFLlib\'s options come in pairs, as in "main.py -data MNIST -algo FedPer"'
        )
    names = (word.lstrip("-") for word in words[::2])
    return {_LONG.get(name, name): value for name, value in zip(names, words[1::2], strict=True)}


def _flags(settings: Mapping[str, str], dataset: Path) -> Iterator[str]:
    """Yield flags of ``pfl fit``."""
    method = _method(settings["algo"])
    yield f"--model={method}"
    if (net := _NETWORKS.get(settings["m"].lower())) is None:
        raise UsageError(
            f"-m {settings['m']}: choose a network of 'pfl list nets', and give the rest of the "
            "command without -m; known are CNN (CNN2), DNN (MLP) and ResNet18"
        )
    yield f"--model.net={net}"
    yield "--model.optimizer=torch.optim.SGD"
    yield "--data=PFLlibFolder"
    yield f"--data.root={shlex.quote(str(dataset / settings['data']))}"
    yield "--data.drop_last=true"
    yield "--loop.sampler=UniformSampler"
    for short, long in {**_SAID, **_of_method(method)}.items():
        if short in settings:
            yield f"--{long}={settings[short]}"
    if settings.get("ld", "False").lower() in ("true", "1"):
        yield f"--model.lr_decay={settings.get('ldg', '0.99')}"


def _method(given: str) -> str:
    """Return the class of a method; letters alone count, and "Fed" may be missing.

    Raises:
        UsageError: There is none.
    """
    exported, base = modules.module("lightning_modules"), stubs.stub(METHOD)
    names = [] if exported is None else exported.names()
    for name in names:
        made = (
            stubs.stub(f"lightning_modules.{name}") if _letters(name) == _letters(given) else None
        )
        if made is not None and base in made.__mro__:
            return name
    raise UsageError(f"-algo {given}: there is no such method{nearest(given, names)}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).replace("fed", "")


def _of_method(method: str) -> dict[str, str]:
    """Return what options of single methods are called in this one."""
    taken = signatures.parameters(stubs.stub(f"lightning_modules.{method}")) or {}
    found = {short: next((n for n in many if n in taken), None) for short, many in _OF.items()}
    return {short: f"model.{name}" for short, name in found.items() if name}


def _left_out(given: Mapping[str, str], method: str) -> Iterator[str]:
    """Yield the options of a command that have no counterpart here."""
    known = {*_SAID, *_of_method(_method(method)), *_NO_MATTER, "ld", "ldg"}
    if given.get("m", "").lower().startswith("resnet"):
        yield "-m ResNet18 is torchvision's, with a stem for 224x224 pixels; ours is for 32x32"
    for name, value in given.items():
        if name not in known:
            yield f"-{name} {value} (the page of the method has its options)"
