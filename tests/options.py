"""The options of all classes that a configuration may name, so that none changes unsaid.

``python -m tests.options`` records new classes, classes that went, and changed defaults. An option
that comes or goes is said in ``pfl/federation/identity.py`` instead.
"""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from torch.optim import SGD, Adam, AdamW

from pfl.cli import catalogue
from pfl.engines.base import Engine
from pfl.federation import identity
from pfl.federation.run import Callback
from pfl.imports import plugins
from pfl.loop import FederatedLoop
from pfl.training.uplink import UplinkStep
from tests.known import of_this_project

FILE = Path(__file__).with_suffix(".json")
# What an option is called besides by its class: by where the class is given.
_PLACES = {
    FederatedLoop: "loop",
    catalogue.find(catalogue.KINDS["methods"]): "model",
    catalogue.find(catalogue.KINDS["data"]): "data",
}


@cache
def classes():
    """Return the classes that identities hold, without abstract ones, and the usual optimisers."""
    catalogue.load()
    brought = tuple(point.module for point in plugins.installed("pfl.callbacks", "pfl.uplink"))
    extras = {kind for kind in catalogue._everything() if kind.__module__.startswith(brought)}
    own = {kind for kind in (*of_this_project(), *extras) if not inspect.isabstract(kind)}
    own.discard(UplinkStep)
    counted = {kind for kind in own if Engine not in kind.__mro__ and kind.__name__[0] != "_"}
    counted = {k for k in counted if not (issubclass(k, Callback) and _is_silent(k))}
    return sorted({FederatedLoop, *counted, SGD, Adam, AdamW}, key=lambda kind: kind.__name__)


def _is_silent(callback):
    """Return ``True`` for a class that only listens, or that a command brings along."""
    home = callback.__module__
    counts = home.startswith(("pfl.callbacks.", "pfl.extras.papers."))
    return callback.__name__ in identity._LISTENERS or not counts


@cache
def options(kind):
    """Return the defaults by option; options that never count are left out."""
    parser = ArgumentParser()
    names = parser.add_class_arguments(kind, fail_untyped=False)
    defaults = parser.get_defaults()
    counted = [n for n in names if not identity._PLACES & set(_names(kind, n))]
    return {name: _plain(defaults.get(name), kind, name) for name in counted}


def _plain(value, kind, name):
    if isinstance(value, Namespace):
        value = identity._flat(value.as_dict(), name)
    try:
        return json.loads(json.dumps(value))
    except TypeError as error:
        raise TypeError(
            f"the default of {kind.__name__}.{name} cannot be written into a configuration; of an "
            "optimiser it can: lambda params: torch.optim.SGD(params, lr=0.1), arguments by name"
        ) from error


def _names(kind, option):
    """Return the names by which identities know an option: of its place and of its class."""
    own = kind.__module__.startswith(catalogue.PACKAGES)
    names = [place for base, place in _PLACES.items() if issubclass(kind, base)]
    names.append(kind.__name__ if own else f"torch.optim.{kind.__name__}")
    return [f"{name}.{option}" for name in names]


def _is_said(kind, option):
    return any(name in identity._CAME_OR_WENT for name in _names(kind, option))


def recorded():
    return json.loads(FILE.read_text("utf-8"))


def renewed():
    """Return the record with all that may be recorded."""
    before, found = recorded() if FILE.exists() else {}, {}
    for kind in classes():
        now = options(kind)
        was = before.get(kind.__name__, now)
        found[kind.__name__] = {name: now.get(name, was[name]) for name in was}
    return found


def unsaid():
    """Return a sentence for each change that was neither recorded nor said."""
    # An option that many classes have from one base is told of once.
    before, found = recorded(), {}
    for kind in classes():
        name, now = kind.__name__, options(kind)
        if name not in before:
            found[name] = f"the class {name} is new: record it with python -m tests.options"
            continue
        for option in {**before[name], **now}:
            entry = " or ".join(map(repr, _names(kind, option)))
            where = f"say in _CAME_OR_WENT of pfl/federation/identity.py, under {entry}, "
            if option not in before[name] and not _is_said(kind, option):
                found.setdefault(
                    _names(kind, option)[0],
                    f"the option {name}.{option} is new: {where}which value gives the numbers of "
                    "runs that were made without it, or they are found no more",
                )
            elif option not in now and not _is_said(kind, option):
                found.setdefault(
                    _names(kind, option)[0],
                    f"the option {name}.{option} is gone: {where}which value gave the numbers of "
                    "runs that are made without it (None: none did), or they are found no more",
                )
            elif option in now and now[option] != before[name].get(option, now[option]):
                found[f"default of {name}.{option}"] = (
                    f"the default of {name}.{option} was {before[name][option]!r} and is "
                    f"{now[option]!r}: configurations that leave it out are other runs now; if "
                    "that is meant, record it with python -m tests.options"
                )
    for name in sorted(before.keys() - {kind.__name__ for kind in classes()}):
        found[name] = (
            f"the class {name} is gone, and its runs are found no more; if that is meant, record "
            "it with python -m tests.options"
        )
    return [*found.values()]


if __name__ == "__main__":
    lines = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in renewed().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
