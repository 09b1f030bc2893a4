"""A reader of YAML texts that bounds their depth and size, and accepts plain keys only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

# Largest number of letters, depth, and number of values after aliases are expanded.
LENGTH, DEPTH, SIZE = 2**22, 50, 100_000


class YamlError(ValueError):
    """A text that is refused.

    Args:
        line: Line of the error, from 1.
        what: What is wrong.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


@dataclass
class _Open:
    """A mapping or sequence that is still open; ``size`` counts its values so far."""

    mapping: bool
    anchor: str | None
    size: int = 1
    items: int = 0


def checked(text: str) -> str:
    """Return a YAML text.

    Raises:
        YamlError: It is not YAML, too deep or too large, or a key is not a word.
    """
    if len(text) > LENGTH:
        raise YamlError(1, f"there are {len(text):,} letters; at most {LENGTH:,} are read")
    try:
        _check(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise YamlError(line, f"this is not YAML ({error.problem})") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise YamlError(line, f"YAML has no character {ord(text[error.position]):#04x}") from error
    return text


def _check(text: str) -> None:
    """Check depth, size and keys of a text without building its content."""
    parents: list[_Open] = []
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionEndEvent):
            done = parents.pop()
            size = done.size
            if done.anchor is not None:
                sizes[done.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise YamlError(line, f"the alias *{event.anchor} refers to no value above it")
            size = sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            if parents and parents[-1].mapping and parents[-1].items % 2 == 0:
                raise YamlError(line, "a key must be a word, not a list or a mapping")
            if len(parents) == DEPTH:
                raise YamlError(line, f"there are more than {DEPTH} levels")
            parents.append(_Open(isinstance(event, yaml.MappingStartEvent), event.anchor))
            continue
        elif isinstance(event, yaml.ScalarEvent):
            if bad := re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", event.value):
                raise YamlError(line, f"text must not hold the control character {bad[0]!a}")
            size = 1
            if event.anchor is not None:
                sizes[event.anchor] = size
        else:
            continue
        if parents:
            parents[-1].items += 1
            parents[-1].size += size
            if parents[-1].size > SIZE:
                raise YamlError(line, f"there are more than {SIZE:,} values, aliases included")


def shipped(package: str, name: str) -> Any:  # noqa: ANN401
    """Return the content of a YAML file that comes with a package of the project."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    # Ten times as fast, where PyYAML was built with it.
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
