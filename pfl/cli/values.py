"""What a value means in a place whose type is declared: plain, a class's name, or what is in it."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from pfl.cli.explain import UserSetting
from pfl.disk.nearest import nearest
from pfl.disk.yaml_text import AmbiguousError, YamlError, ambiguous, composed, content_of, loaded
from pfl.engines import named
from pfl.imports import hints
from pfl.imports.trust import check_numbers, is_path

CLASSLESS = "no class is given: name it as class_path, and its arguments under init_args"


@dataclass(frozen=True)
class Name:
    """The name of a class.

    Attributes:
        or_text: Whether it may be plain text as well, such as the name of a file.
    """

    or_text: bool = False


@dataclass(frozen=True)
class Plain:
    """A plain value, or one in which objects follow by their own keys.

    Attributes:
        value: The value, as the parser reads it.
    """

    value: Any


@dataclass(frozen=True)
class Within(Plain):
    """The text of a flag that describes an object or holds several values.

    Attributes:
        node: What it says.
    """

    node: yaml.CollectionNode


Meaning: TypeAlias = Name | Plain


def meaning(item: UserSetting, declared: Any, described: bool) -> Meaning:
    """Return what a setting's value means in its place.

    Args:
        item: The setting.
        declared: The type declared for it.
        described: Whether an object is given there already, whose arguments this value adds to.

    Raises:
        UsageError: The value is not of the type.
    """
    if not hints.is_known(declared):
        found = node_of(item) if isinstance(item.value, str) else None
        return Within(content_of(found), found) if found else _finite(item, _loaded(item))
    if item.text == "null" if item.node is None else item.value is None:
        if not hints.takes_null(declared):
            raise item.error(f"expected {hints.said(declared)}, got null")
        return Plain(None)
    if hints.is_plain(declared):
        return _of_plain(item, declared)
    if isinstance(item.value, str):
        return _of_text(item, declared, described)
    return _of_content(item, declared, described)


def _of_content(item: UserSetting, declared: Any, described: bool) -> Plain:
    """Return a value that is neither plain nor text; what is in it follows by its own keys."""
    value, classes = item.value, [*hints.classes(declared)]
    if isinstance(value, Mapping) and (classes or hints.takes(declared, hints.MAPPINGS)):
        spelt = {"class_path", "init_args", "dict_kwargs"} & {*value}
        nameless = hints.takes(declared, hints.MAPPINGS) or any(map(hints.is_record, classes))
        if not (nameless or spelt or described):
            raise item.error(CLASSLESS)
    elif not (isinstance(value, list) and hints.takes(declared, hints.LISTS)):
        return _of_type(item, hints.plain_part(declared), declared)
    return Plain(value)


def _of_text(item: UserSetting, declared: Any, described: bool) -> Meaning:
    """Return what a text means in the place of an object."""
    text, plain = str(item.text), hints.plain_part(declared)
    takes_text = hints.takes(plain, (str,))
    if not takes_text or text.startswith(("{", "[")):
        node = node_of(item)
        if node is not None:
            _of_content(replace(item, text=None, node=node), declared, described)
            return Within(content_of(node), node)
    place = hints.alone(declared)
    called = hints.takes(place, hints.CALLABLES) and is_path(text)
    named_here = any(hints.classes(place)) and (text.isidentifier() or is_path(text))
    if text in hints.all_words(declared):
        # Other words are for the class that has the argument, as a task's name is.
        return Name() if text in named.NAMES else Plain(text)
    if (named_here or called) and not _is_text(item, plain):
        # The name of a file has a dot, too.
        return Name(or_text=takes_text and "." in text)
    return _of_type(item, plain, declared)


def node_of(item: UserSetting) -> yaml.CollectionNode | None:
    """Return the node of a text that the parser would not read as plain text."""
    try:
        node = composed(str(item.text))
    except AmbiguousError as error:
        raise item.error(str(error)) from error
    except YamlError:
        return None
    return node if isinstance(node, yaml.CollectionNode) else None


def _finite(item: UserSetting, value: Any) -> Plain:
    """Return a value; refuse a number that is NaN, too large, or infinite where it makes no sense.

    Raises:
        UsageError: It is such a number.
    """
    try:
        check_numbers(value, item.keys)
    except ValueError as error:
        raise item.error(str(error)) from error
    return Plain(value)


def _loaded(item: UserSetting) -> Any:
    """Return a value of no declared type: as it stands in a file, or as a flag's text reads."""
    with suppress(YamlError):
        return loaded(item.text) if item.node is None and item.text is not None else item.value
    return item.text


def _is_text(item: UserSetting, plain: Any) -> bool:
    """Return ``True`` for a text that is one of a plain type, or names a file where text may."""
    if hints.takes(plain, (str,)):
        return Path(str(item.text)).exists()
    return plain is not None and _fits(item, plain)


def _of_plain(item: UserSetting, declared: Any) -> Plain:
    """Return a value that is no object, of its type."""
    if item.node is None and str(item.text).startswith(("[", "{")):
        node_of(item)  # numbers in it may be ambiguous, too
    if item.node is None and (what := ambiguous(str(item.text))) and not _fits(item, declared):
        raise item.error(what)
    return _of_type(item, declared, declared)


def _of_type(item: UserSetting, plain: Any, declared: Any) -> Plain:
    """Return a value as one of a plain type, a part of the declared one.

    Raises:
        UsageError: There is no such part, or it is of another type.
    """
    if plain is not None:
        with suppress(ArgumentError):
            return _finite(item, _read(item, plain))
    text = str(item.value)[:60] if item.text is None else item.text
    raise item.error(_expected(declared, text))


def _expected(declared: Any, text: str) -> str:
    words = [str(word) for word in hints.all_words(declared)]
    return f"expected {hints.said(declared)}, got {text}{nearest(text, words)}"


def _read(item: UserSetting, declared: Any) -> Any:
    """Return a value as the parser reads one of a plain type.

    Raises:
        ArgumentError: It is of another type.
    """
    parser = _reader(repr(declared), declared)
    if item.node is not None:
        return parser.parse_object({"value": item.value}).value
    found = parser.parse_args([f"--value={item.text}"]).value
    # The parser would also read ambiguous texts of numbers.
    if not isinstance(found, str) and (what := ambiguous(str(item.text))):
        raise ArgumentError(None, what)
    return found


def _fits(item: UserSetting, declared: Any) -> bool:
    """Return ``True`` if the parser reads a value as one of a plain type."""
    try:
        _read(item, declared)
    except ArgumentError:
        return False
    return True


def fits(value: Any, declared: Any) -> bool:
    """Return ``False`` for a plain value that is not of a plain type."""
    if not hints.is_plain(declared):
        return True
    try:
        _reader(repr(declared), declared).parse_object({"value": value})
    except ArgumentError:
        return False
    return True


@cache
def _reader(spelling: str, declared: Any) -> Any:
    """Return a parser of one value.

    Args:
        spelling: The type in words: unions that differ in their order are equal, but the parser
            tries their parts in order.
        declared: The type.
    """
    from jsonargparse import ArgumentParser, set_loader

    set_loader("value", loaded, (yaml.YAMLError, YamlError))
    parser = ArgumentParser(exit_on_error=False, parser_mode="value")
    parser.add_argument("--value", type=declared)
    return parser
