"""Checks of the keys, classes and words in a configuration.

The project's classes are listed in :mod:`pfl.cli.known`, so that a wrong name is found before torch
is imported. Names of other packages are left to the parser; :func:`explain` rewrites its errors.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pfl.callbacks import foreign
from pfl.cli import catalogue, known
from pfl.cli.commands import TOP_KEYS
from pfl.cli.explain import (
    Keys,
    UsageError,
    UserSetting,
    UserSettings,
    in_plain_words,
    message_at,
    settings_of,
    short_keys,
)
from pfl.cli.known import BrokenError, Known
from pfl.disk.nearest import hint, nearest
from pfl.imports import plugins
from pfl.imports.hints import declared
from pfl.imports.plugins import PACKAGES
from pfl.imports.trust import CONFIGURATION, TrustError, is_path

_SECTIONS = {"model": "ClientModule", "data": "FederatedDataModule"}
# Packages that contain no methods and no data.
_LIBRARIES = ("torch.", "torchvision.", "torchmetrics.", "lightning.")
# The parser's message about a value that does not describe an object.
_NO_OBJECT = r"(?:subclass of|protocol) (\w+)\. Got value: (.*?)\s+Subclass"
_CLASSLESS = "no class is given: name it as class_path, and its arguments under init_args"


def check(settings: UserSettings, flags: Iterable[str] = ()) -> None:
    """Check those keys, classes and words of a configuration that are known here.

    Args:
        settings: All settings.
        flags: Top-level keys of the command, besides those of every configuration.

    Raises:
        UsageError: A key or a class does not exist, or a word is not a value of its key.
    """
    top = dict.fromkeys((*TOP_KEYS, "help", *flags), "") | _SECTIONS
    closed = not _brings_classes(settings)
    # None for a class whose arguments are left to the parser.
    owners: dict[Keys, Known | None] = {
        (): Known("", "", arguments=top),
        ("loop",): known.classes()[known.LOOP],
    }
    for item in settings:
        *parents, name = item.keys
        parent = tuple(parents)
        owner = owners.get(parent)
        _check_callback(item)
        if item.keys[0] not in top:
            section = replace(item, keys=item.keys[:1])
            raise _unknown(section, f"there is no key {item.keys[0]!r}", top, owners)
        if name in ("class_path", "help") and item.text is not None:
            _check_word(replace(item, keys=parent), owners.get(parent[:-1]), closed)
            owners[parent] = _class(item.text)
        elif owner is not None and not owner.may_take(name):
            raise _unknown(item, f"{owner.name} has no argument {name!r}", owner.arguments, owners)
        elif len(parent) == 1 and parent not in owners:
            raise item.error(f"{parent[0]} has no class{hint(name, ('class_path', 'init_args'))}")
        elif item.text is not None:
            _check_word(item, owner, closed)
            owners[item.keys] = _class(item.text)


def _brings_classes(settings: UserSettings) -> bool:
    """Return ``True`` if other packages or the user's modules may define classes."""
    paths = [item.text for item in settings if item.text and is_path(item.text)]
    others = [path for path in paths if not path.startswith((*PACKAGES, *_LIBRARIES))]
    return bool(others or plugins.installed())


def _class(name: str) -> Known | None:
    return known.classes().get(name.rpartition(".")[2] if name.startswith(PACKAGES) else name)


def _unknown(
    item: UserSetting, what: str, choices: Iterable[str], owners: Mapping[Keys, Known | None]
) -> UsageError:
    """Return an error about a key, with its right place, the nearest key or all keys."""
    name, classes = item.keys[-1], [(keys, one) for keys, one in owners.items() if keys and one]
    homes = {(*keys, name) for keys, one in classes if name in one.arguments}
    # For a class of unknown arguments: the arguments set before.
    homes |= {keys for keys in owners if keys[-1:] == (name,)}
    near = " or ".join(sorted(".".join(keys) for keys in homes))
    return item.error(what + (f"; did you mean {near}?" if near else hint(name, sorted(choices))))


def _check_word(item: UserSetting, owner: Known | None, closed: bool) -> None:
    """Reject a word where a number, another word or a class of this project is expected.

    Unless ``closed``, other packages may define the class.
    """
    text = item.text or ""
    # Lists, paths and the like are left to the parser.
    if owner is None or text == "null" or not text.isidentifier():
        return
    types = [one for one in owner.arguments.get(item.keys[-1], "").split(" | ") if one != "None"]
    words = [one.strip("'") for one in types if one.startswith("'")]
    others = [one for one in types if not one.startswith("'")]
    if others in (["int"], ["float"]) and not words:
        raise item.error(f"expected {others[0]}, got {text}")
    if words and not others and text not in words:
        raise item.error(f"expected one of {', '.join(map(repr, words))}, got {text}")
    if closed and _are_classes(others) and text not in words and not known.is_class(text):
        named = {*known.named(), *known.of_torch(others)}
        # Some classes may be replaced by a file.
        if text not in named and not ("str" in others and Path(text).exists()):
            raise item.error(_no_class(text, words, named))


def _are_classes(types: Sequence[str]) -> bool:
    """Return ``True`` if a value must be a class of this project or of torch, or a file."""
    names = {*types} - {"str"}
    return bool(names) and names <= {*known.classes(), *known.OF_TORCH}


def _check_callback(item: UserSetting) -> None:
    """Reject a callback of Lightning, with or without its module."""
    name = str(item.text)
    bare = name in foreign.REPLACEMENTS and name not in known.classes()
    lightnings = bare or name.startswith(("lightning.", "pytorch_lightning."))
    if item.keys[:2] == ("loop", "callbacks") and lightnings:
        raise item.error(foreign.refusal(name.rpartition(".")[2]))


def _no_class(name: str, words: Sequence[str], choices: Collection[str]) -> str:
    what = f"there is no class {name!r}"
    if words:
        what = f"{name!r} is not one of {', '.join(words)}, nor a class"
    return what + (nearest(name, words) or nearest(name, choices))


def imported(name: str) -> type | None:
    """Return the class of a name or a dotted path; ``None`` if the path is of something else.

    Raises:
        UsageError: It does not exist or is not allowed, or its module cannot be imported.
    """
    classes = catalogue.classes()
    if name in classes:
        return classes[name]
    try:
        CONFIGURATION.check_name(name)
        target = catalogue.find(name)
    except (TrustError, BrokenError) as error:
        raise UsageError(str(error)) from error
    except ImportError as error:
        last = name.rpartition(".")[2]
        near = nearest(name, catalogue.neighbours(name)) or nearest(last, classes)
        near = f"; did you mean {last!r}?" if last in classes else near
        raise UsageError(f"there is no class {name!r}{near}") from error
    return target if isinstance(target, type) else None


def explain(error: Exception, settings: UserSettings) -> str:
    """Return a one-line message for an error of the parser.

    The parser nests its errors, one for each level of keys; the innermost is the cause.
    """
    keys: list[str] = []
    message = last = ""
    link: BaseException | None = error
    while link is not None:
        cause, message = link, str(link)
        if message != last and (key := re.match(r'Parser key "([^"]+)":', message)):
            keys += key[1].split(".")
        last = message
        link = link.__cause__ or link.__context__
    path = short_keys(keys)
    what = in_plain_words(message)
    if not path:
        return what
    there = settings_of(settings, path)
    # Classes that the user gave there, and those that the parser was reading.
    classes = [item.text for item in reversed(there) if item.text]
    classes += reversed(re.findall(r"class_path '([\w.]+)'", str(error)))
    if option := re.search(r"Option '(\w+)' is not accepted", message):
        if option[1] == "class_path":
            what = "put the arguments of a class under init_args"
        elif any(item.text for item in there) or _is_list(path, settings):
            path = (*path, option[1])
            there = settings_of(settings, path) or there
            made = next(one for one in map(_class_of, classes) if one is not None)
            what = f"{made.__name__} has no argument {option[1]!r}"
            what += hint(option[1], sorted(declared(made)))
        else:
            what = _CLASSLESS
    elif "instantiatable class, but" in message and not any(item.text for item in there):
        what = _CLASSLESS
    elif isinstance(cause, AttributeError | ImportError) or "import path" in message:
        named = re.search(r"(?:path string: |path format: |Importing ')([^\s']+)", message)
        try:
            imported(named[1] if named else classes[0])
        except UsageError as missing:
            what = str(missing)
    elif value := re.search(_NO_OBJECT, message):
        what = f"expected {value[1]}: a class name, or class_path and init_args; "
        what += f"got {value[2]}"
    elif untyped := re.search(r"Parameter '(\w+)' from '(\S+?)(?:\.__init__)?' does not", message):
        what = f"declare the type of the argument {untyped[1]!r} of {untyped[2]}"
    elif unfit := re.search(r"path (\S+) does not implement protocol (\w+)", message):
        what = _unlike(*unfit.groups())
    return message_at(there[-1].place if there else "", path, what)


def _is_list(path: Keys, settings: UserSettings) -> bool:
    """Return ``True`` if the value at a path of keys is a list of objects."""
    inner = (item.keys[len(path) :][:1] for item in settings if item.keys[: len(path)] == path)
    return any(keys and keys[0].isdigit() for keys in inner)


def _class_of(name: str) -> type | None:
    """Return the class of a name; ``None`` if there is none, as for names of engines."""
    try:
        return imported(name)
    except UsageError:
        return None


def _unlike(path: str, name: str) -> str:
    """Return a message about a class that does not implement a protocol, such as Sampler."""
    protocol = catalogue.classes()[name]
    public = [n for n in vars(protocol) if n == "__call__" or not n.startswith("_")]
    methods = {n: vars(protocol)[n] for n in public if inspect.isfunction(vars(protocol)[n])}
    like = ", ".join(f"{n}{inspect.signature(m)}" for n, m in methods.items()).replace("'", "")
    return (
        f"{path} does not implement {name}: derive it from {protocol.__module__}.{name}, and "
        f"declare the types of {like}"
    )
