"""The classes of pfl and the options of the loop, listed without importing them.

``python -m tests.known`` generates ``known.json`` from the classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pfl
from pfl.imports.plugins import installed

# What can be listed, with the base class of each kind.
KINDS = {
    "methods": "lightning_modules.base.ClientModule",
    "nets": "lightning_modules.nets.SplitNet",
    "data": "datamodules.FederatedDataModule",
    "partitions": "datamodules.Partitioner",
}

# Function that shows data. pfl imports no methods or data sets itself; it finds them by name.
INSPECT = "datamodules.inspect"

# Types whose classes in torch may be given by name, with the folders of torch that define them.
OF_TORCH = {"Module": "nn/modules", "Optimizer": "optim"}

LOOP = "FederatedLoop"
# Placeholder in the file for the names of engines from plug-ins.
ENGINES = "engines of plug-ins"

FILE = Path(__file__).with_name("known.json")
_HOME = Path(pfl.__file__).parents[1]


class BrokenError(ImportError):
    """A module exists but cannot be imported."""


@dataclass(frozen=True)
class Known:
    """A class that a configuration may name.

    Attributes:
        name: Name, preceded by the package for a plug-in.
        sentence: First line of the docstring, without markup.
        kind: One of :data:`KINDS` if the class is listed.
        arguments: Arguments, including those passed on to base classes, by name: their types if
            these are numbers, words or classes of this project, and "" otherwise.
        files: Source files of the class and of its bases among methods and data.
    """

    name: str
    sentence: str
    kind: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[str] = ()

    def may_take(self, name: str) -> bool:
        """Return ``True`` for an argument, even one newer than ``known.json``."""
        return name in self.arguments or _occurs(rf"\b{re.escape(name)}: ", self.files)


@cache
def classes() -> Mapping[str, Known]:
    """Return the project's classes, by name."""
    recorded: dict[str, dict[str, Any]] = _content()["classes"]

    def arguments(name: str) -> dict[str, str]:
        base = recorded[name]["base"]
        return {**recorded[name]["arguments"], **(arguments(base) if base else {})}

    return {
        name: Known(name, item["sentence"], item["kind"], arguments(name), item["files"])
        for name, item in recorded.items()
    }


def named() -> set[str]:
    """Return the names of the project's classes and of engines from plug-ins."""
    return {*classes(), *(point.attr for point in installed("pfl.engines"))}


def is_class(name: str) -> bool:
    """Return ``True`` for a class, even one newer than ``known.json``."""
    rooms = ("lightning_modules", "datamodules")
    files = (file for room in rooms for file in (_HOME / room).rglob("*.py"))
    return name in named() or _occurs(rf"^class {re.escape(name)}\b", files)


def of_torch(types: Iterable[str]) -> set[str]:
    """Return torch's classes of some types from its source files: importing it takes seconds."""
    torch = find_spec("torch")
    home = Path(str(torch.origin)).parent if torch else Path()
    rooms = [home / OF_TORCH[name] for name in types if name in OF_TORCH]
    texts = (file.read_text(encoding="utf-8") for room in rooms for file in room.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"^class ([A-Z]\w*)", text, re.M)}


def loop() -> Mapping[str, str]:
    """Return the help of each option of the loop, by name."""
    helps: Mapping[str, str] = _content()["loop"]
    return helps


def sentence(described: type) -> str:
    """Return the first line of a class's docstring, without markup."""
    return unmarked((described.__doc__ or "").partition("\n")[0])


def unmarked(text: str) -> str:
    """Remove the markup of a docstring."""
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text).replace("``", "")


@cache
def _content() -> dict[str, Any]:
    brought = "".join(f" | {point.name!r}" for point in installed("pfl.engines"))
    text = FILE.read_text(encoding="utf-8").replace(f" | {ENGINES}", brought)
    content: dict[str, Any] = json.loads(text)
    return content


def _occurs(pattern: str, files: Iterable[str | Path]) -> bool:
    texts = ((_HOME / file).read_text(encoding="utf-8") for file in files)
    return any(re.search(pattern, text, re.MULTILINE) for text in texts)
