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


class _Reader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.2's words and numbers: only true and false are truth values, and 1e-3 is a number."""


_PLAIN = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?0[bo][0-7_]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?(?:[0-9][0-9_]*)[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
}
_Reader.yaml_implicit_resolvers = {
    first: [one for one in forms if one[0].rpartition(":")[2] in ("null", "merge")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, (_form, _first) in _PLAIN.items():
    _Reader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_form})$"), list(_first)
    )
# Numbers to the base of 8 or 60 of YAML 1.1, which writes any other such text without quotes.
_OTHER_BASE = re.compile(
    r"[-+]?0[0-7_]+|[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*"
)
_ODD = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


def ambiguous(text: str) -> str:
    """Return what is wrong with a number that may be read in two ways; an empty text if nothing."""
    if not _ODD.fullmatch(text):
        return ""
    return (
        f"{text} may be read in two ways: write a number without a leading zero or a colon, or "
        f"'{text}' in quotes for a text"
    )


def loaded(text: str) -> Any:  # noqa: ANN401
    """Return the content of a YAML text, the one way in which files, flags and sweeps are read.

    ``yes`` and ``on`` are words; a number with a leading zero or a colon is refused.

    Raises:
        YamlError: See :func:`checked`.

    Example:
        >>> loaded("{positive: yes, lr: 1e-3, day: 2026-01-01}")
        {'positive': 'yes', 'lr': 0.001, 'day': '2026-01-01'}
    """
    return yaml.load(checked(text), _Reader)


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
            if event.implicit[0] and not event.style and _OTHER_BASE.fullmatch(event.value):
                raise YamlError(line, ambiguous(event.value))
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
