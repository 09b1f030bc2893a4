"""The classes that come with pfl and the options of the loop, known without importing them.

``known.json`` is written by ``python -m tests.known``, from the classes themselves.
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

# How data are shown. pfl imports no method and no data set; it finds them by what this file names.
INSPECT = "datamodules.inspect"

# Types of torch that a word may name a class of, with the folders of torch that hold its own.
OF_TORCH = {"Module": "nn/modules", "Optimizer": "optim"}

LOOP = "FederatedLoop"
# Stands in the file for the names of engines that plug-ins bring.
ENGINES = "engines of plug-ins"

FILE = Path(__file__).with_name("known.json")
_HOME = Path(pfl.__file__).parents[1]


class BrokenError(ImportError):
    """A module exists, but cannot be imported."""


@dataclass(frozen=True)
class Known:
    """A class that a configuration may name.

    Attributes:
        name: Its name; for a plug-in, preceded by its package.
        sentence: First line of its docstring, without markup.
        kind: One of :data:`KINDS` if it is listed.
        arguments: Its arguments, with those that it passes on to its bases, by name: the types of
            those that take numbers, words or classes of this project, and "" for any other.
        files: Its source file, and those of its bases among methods and data.
    """

    name: str
    sentence: str
    kind: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[str] = ()

    def may_take(self, name: str) -> bool:
        """Return ``True`` for an argument, even one added after the file of classes was written."""
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
    """Return the names of the project's classes, and of the engines that plug-ins bring."""
    return {*classes(), *(point.attr for point in installed("pfl.engines"))}


def is_class(name: str) -> bool:
    """Return ``True`` for a class, even one added after the file of classes was written."""
    rooms = ("lightning_modules", "datamodules")
    files = (file for room in rooms for file in (_HOME / room).rglob("*.py"))
    return name in named() or _occurs(rf"^class {re.escape(name)}\b", files)


def of_torch(types: Iterable[str]) -> set[str]:
    """Return torch's own classes of some types, by its source files: its import takes seconds."""
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
    """Return the first line of a class's docstring, without its markup."""
    return unmarked((described.__doc__ or "").partition("\n")[0])


def unmarked(text: str) -> str:
    """Return a docstring's text without its markup."""
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
