"""Reading YAML with bounds on depth and size."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import yaml

from pfl.disk.bounds import DEPTH, BoundsError, check_bounds

# Largest number of characters.
LENGTH = 2**22


class YamlError(ValueError):
    """A text that is refused.

    Args:
        line: Line of the error, from 1.
        what: What is wrong.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


class AmbiguousError(YamlError):
    """A number that can be read in two ways."""


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
    first: [one for one in forms if one[0].endswith(":null")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, (_form, _first) in _PLAIN.items():
    _Reader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_form})$"), list(_first)
    )
# Numbers with a leading zero or a colon: YAML 1.1 reads some in base 8 or 60, others as text.
_ODD = re.compile(
    r"[-+]?0[0-9_]+(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
)


def ambiguous(text: str) -> str:
    """Return the error for a number that can be read in two ways; empty if there is none."""
    if not _ODD.fullmatch(text):
        return ""
    return (
        f"{text} may be read in two ways: write a number without a leading zero or a colon, or "
        f"'{text}' in quotes for a text"
    )


def loaded(text: str) -> Any:  # noqa: ANN401
    """Return the content of a YAML text; files, flags and sweeps are all read with this.

    ``yes`` and ``on`` are words; a number with a leading zero or a colon is refused.

    Raises:
        YamlError: It is not YAML, too deep or too large, or a key is a list or a mapping.

    Example:
        >>> loaded("{positive: yes, lr: 1e-3, day: 2026-01-01}")
        {'positive': 'yes', 'lr': 0.001, 'day': '2026-01-01'}
    """
    return content_of(composed(text))


def composed(text: str) -> yaml.Node | None:
    """Return the top node of a YAML text, whose nodes know their lines; ``None`` if it is empty.

    Raises:
        YamlError: See :func:`loaded`.
    """
    if len(text) > LENGTH:
        raise YamlError(1, f"there are {len(text):,} characters; at most {LENGTH:,} are read")
    try:
        _check(text)
        node = yaml.compose(text, _Reader)
        check_bounds(content_of(node))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise YamlError(line, f"this is not YAML ({error.problem})") from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise YamlError(line, f"YAML has no character {ord(text[error.position]):#04x}") from error
    except BoundsError as error:
        raise YamlError(1, str(error)) from error
    return node


def content_of(node: yaml.Node | None) -> Any:  # noqa: ANN401
    """Return the plain values of a node."""
    return None if node is None else _Reader("").construct_document(node)


def _check(text: str) -> None:
    """Check depth, characters and numbers of a text without building its content."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH:
                raise YamlError(line, f"there are more than {DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent):
            if bad := re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", event.value):
                raise YamlError(line, f"text must not have the control character {bad[0]!a}")
            if event.implicit[0] and not event.style and (what := ambiguous(event.value)):
                raise AmbiguousError(line, what)


class _Writer(yaml.SafeDumper):
    """Quotes text that would be read as another value, or refused, without quotes."""


for _kind, (_form, _first) in {**_PLAIN, "odd": (_ODD.pattern, "-+0123456789")}.items():
    _Writer.add_implicit_resolver(f"!{_kind}", re.compile(f"(?:{_form})$"), list(_first))


def dumped(content: Any) -> str:  # noqa: ANN401
    """Return plain values as YAML that :func:`loaded` reads back unchanged."""
    return yaml.dump(content, Dumper=_Writer, sort_keys=False)


def shipped(package: str, name: str) -> Any:  # noqa: ANN401
    """Return the content of a YAML file that comes with a package of the project."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    # Ten times as fast, if PyYAML was built with it.
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
