"""What ``pfl/cli/known.json`` says, from the classes themselves.

``python -m tests.known`` writes it anew.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin

from torch import nn

from pfl.cli import catalogue, known
from pfl.cli.commands import LOOP_DEFAULTS
from pfl.core.types import OptimizerFactory
from pfl.engines.named import OWN, EngineName
from pfl.federation.settings import Settings
from pfl.imports.hints import declared
from pfl.imports.plugins import PACKAGES
from pfl.loop import FederatedLoop

ROOT = Path(__file__).parent.parent
# Where a method or a data set may have got an option since.
_ROOMS = ("lightning_modules.", "datamodules.")
# Packages whose classes no configuration names.
_INTERNAL = ("pfl.campaign.", "pfl.cli.", "pfl.extras.", "pfl.testing.")
# Classes that enter as those of plug-ins do.
_BROUGHT = ("pfl.engines.processes", "pfl.engines.ray")


def of_this_project():
    """Return every class of this project that a configuration can name."""
    homes = [(item, item.__module__) for item in catalogue._everything()]
    return [
        one
        for one, at in homes
        if at.startswith(PACKAGES) and not at.startswith((*_INTERNAL, *_BROUGHT))
    ]


def content():
    """Return what the file should hold."""
    catalogue.load()
    kinds = {kind: catalogue.find(path) for kind, path in known.KINDS.items()}
    classes = {kind.__name__: kind for kind in (*of_this_project(), FederatedLoop)}
    return {
        "classes": {name: _class(classes[name], kinds, classes) for name in sorted(classes)},
        "loop": _loop(),
    }


def _class(item, kinds, own):
    usable = not inspect.isabstract(item) and item.__name__[0] != "_"
    of = [kind for kind, base in kinds.items() if issubclass(item, base) and item is not base]
    line = [item, *(one for one in item.__mro__ if one.__module__.startswith(_ROOMS))]
    homes = dict.fromkeys(map(inspect.getsourcefile, line))
    taken = _arguments(item, own)
    # The base with most arguments, all of which it has too: they stand with the base alone.
    bases = [one for one in item.__mro__[1:] if own.get(one.__name__) is one]
    whole = [one for one in bases if _arguments(one, own).items() <= taken.items()]
    base = max(whole, key=lambda one: len(_arguments(one, own)), default=None)
    inherited = () if base is None else _arguments(base, own)
    return {
        "kind": of[0] if of and usable else None,
        "sentence": known.sentence(item),
        "base": None if base is None else base.__name__,
        "arguments": {name: kind for name, kind in taken.items() if name not in inherited},
        "files": [Path(file).relative_to(ROOT).as_posix() for file in homes],
    }


def _arguments(item, own):
    # Types that torch declares differ from version to version.
    of_torch = getattr(item.__init__, "__module__", "").startswith("torch.")
    hints = declared(item).items()
    return {name: "" if of_torch else _compared(kind, own) for name, kind in hints}


def _compared(kind, own):
    """Return a type that a word of a command line can be compared with; empty for any other."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    plain = {int, float, str, type(None), nn.Module, *own.values()}
    if kind == OptimizerFactory:
        return "Optimizer"
    told = (get_origin(one) is Literal or (inspect.isclass(one) and one in plain) for one in parts)
    return _spelt(kind) if all(told) else ""


def _loop():
    """Return the sentence of each option with its type, as it is written, and default."""
    told = re.search(r"\nArgs:\n(.*?)\n\n", inspect.getdoc(Settings), re.S)[1]
    said = dict(line.split(": ", 1) for line in re.split(r"^    (?=\w)", told, flags=re.M)[1:])
    types, found = declared(FederatedLoop), {}
    for name, option in inspect.signature(FederatedLoop).parameters.items():
        usual = LOOP_DEFAULTS.get(name)
        usual = usual if isinstance(usual, str) else repr(option.default)
        text = " ".join(known.unmarked(said[name]).split())
        found[name] = f"{text} ({_spelt(types[name])}, default: {usual})"
    return {name: text for name, text in found.items() if name != "seed"}


def _spelt(kind):
    """Return a type in words, the same for every version of Python and all plug-ins."""
    if kind == EngineName:
        return " | ".join([*map(repr, OWN), known.ENGINES])
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType, Literal):
        return " | ".join(map(_spelt, inner))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_spelt, inner))}]"
    return "None" if kind is type(None) else getattr(kind, "__name__", repr(kind))


def text():
    """Return the file's text, a line for each class and option."""
    parts = []
    for key, entries in content().items():
        lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(e)}" for n, e in entries.items())
        parts.append(f"{json.dumps(key)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    known.FILE.write_text(text(), "utf-8")
