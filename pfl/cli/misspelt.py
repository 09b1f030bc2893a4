"""Misspelt keys and classes of a configuration, and what the parser's errors mean."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pfl.callbacks import foreign
from pfl.cli import catalogue
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
from pfl.cli.known import OF_TORCH, BrokenError, Known, classes, is_class, of_torch
from pfl.cli.known import named as known_names
from pfl.disk.nearest import hint, nearest
from pfl.imports.hints import declared
from pfl.imports.trust import CONFIGURATION, Trust, TrustError

# What the parser says of a value that describes no object, and of arguments without a class.
_NO_OBJECT = r"(?:subclass of|protocol) (\w+)\. Got value: (.*?)\s+Subclass"
_CLASSLESS = r"Option '\w+' is not accepted|instantiatable class, but \S+ is abstract"


def find_misspelling(
    settings: UserSettings,
    top: Mapping[str, str],
    loop: Known | None,
    resolve: Callable[[UserSetting], Known | None],
    named: Callable[[str], Known | None],
) -> None:
    """Check that every key and every class exists.

    Args:
        settings: All settings.
        top: The types of the top-level keys, as in :attr:`Known.arguments`.
        loop: The class of the loop.
        resolve: Returns the class that a setting names; ``None`` if its arguments are not known.
        named: Returns the class of a name that needs no module; ``None`` if there is none.

    Raises:
        UsageError: A key or a class does not exist, or a word is no value of its key.
    """
    class_at: dict[Keys, Known | None] = {(): Known("", "", arguments=top), ("loop",): loop}
    # Named by a path or made by a function: only the parser knows the arguments.
    left_to_parser = set[Keys]()
    for item in settings:
        *parents, name = item.keys
        parent = tuple(parents)
        if item.keys[0] not in top:
            section = UserSetting(item.keys[:1], item.text, item.place)
            what = f"there is no key {item.keys[0]!r}"
            raise _elsewhere(section, what, class_at) or unknown(section, what, top)
        owner = class_at.get(parent)
        if name in ("class_path", "help") and item.text is not None:
            _check_word(replace(item, keys=parent), class_at.get(parent[:-1]))
            class_at[parent] = resolve(item)
            left_to_parser |= {parent} if class_at[parent] is None else set()
        elif owner is not None and not owner.may_take(name):
            what = f"{owner.name} has no argument {name!r}"
            raise _elsewhere(item, what, class_at) or unknown(item, what, owner.arguments)
        elif owner is None and len(parent) == 1 and parent not in left_to_parser:
            raise unknown(item, f"{parent[0]} has no class", ("class_path", "init_args"))
        elif item.text is not None:
            _check_word(item, owner)
            class_at[item.keys] = named(item.text)
            left_to_parser |= {item.keys}


def _elsewhere(
    item: UserSetting, what: str, class_at: Mapping[Keys, Known | None]
) -> UsageError | None:
    """Return the error about a key that another part of the configuration has."""
    name = item.keys[-1]
    owners = [keys for keys, one in class_at.items() if keys and one and name in one.arguments]
    # Of a class whose arguments are not known here, what is set before.
    homes = {(*keys, name) for keys in owners} | {keys for keys in class_at if keys[-1:] == (name,)}
    near = " or ".join(sorted(".".join(keys) for keys in homes))
    return item.error(f"{what}; did you mean {near}?") if homes else None


def _check_word(item: UserSetting, owner: Known | None) -> None:
    """Refuse a word where a number, another word or a class of this project is expected."""
    text = item.text or ""
    # What is no word, such as a list or a path, is left to the parser.
    if owner is None or text == "null" or not text.isidentifier():
        return
    types = [one for one in owner.arguments.get(item.keys[-1], "").split(" | ") if one != "None"]
    words = [one.strip("'") for one in types if one.startswith("'")]
    others = [one for one in types if not one.startswith("'")]
    what = None
    if others in (["int"], ["float"]) and not words:
        what = f"expected {others[0]}, got {text}"
    elif words and not others and text not in words:
        what = f"expected one of {', '.join(map(repr, words))}, got {text}"
    elif _are_classes(others) and text not in words and not is_class(text):
        named = {*known_names(), *of_torch(others)}
        # A file may stand instead of some classes.
        is_file = "str" in others and Path(text).exists()
        what = None if is_file or text in named else _no_class(text, words, named)
    if what is not None:
        raise item.error(what)


def _are_classes(types: Sequence[str]) -> bool:
    """Return ``True`` if only a class of this project or of torch fits, or the path of a file."""
    names = {*types} - {"str"}
    return bool(names) and names <= {*classes(), *OF_TORCH}


def resolve(item: UserSetting, trust: Trust = CONFIGURATION) -> type | None:
    """Return the class that a setting names; ``None`` for a function that makes objects."""
    name, known = str(item.text), catalogue.classes()
    _check_callback(item)
    if name in known:
        return known[name]
    try:
        trust.check_name(name)
        target = catalogue.find(name)
    except (TrustError, BrokenError) as error:
        raise item.error(str(error)) from error
    except ImportError as error:
        last = name.rpartition(".")[2]
        near = nearest(name, catalogue.neighbours(name)) or nearest(last, known)
        if last in known:
            near = f"; did you mean {last!r}?"
        raise item.error(f"there is no class {name!r}{near}") from error
    return target if isinstance(target, type) else None


def known_class(imported: type | None) -> Known | None:
    """Return name and arguments of an imported class."""
    if imported is None:
        return None
    return Known(imported.__name__, "", arguments=dict.fromkeys(declared(imported), ""))


def check_names(settings: UserSettings, trust: Trust = CONFIGURATION) -> None:
    """Refuse classes that may not be named, before the parser imports their modules.

    Raises:
        TrustError: A class may not be named.
        UsageError: A callback is Lightning's.
    """
    for item in settings:
        if item.keys[-1] == "class_path" and "." in (item.text or ""):
            _check_callback(item)
            trust.check_name(str(item.text), item.keys[:-1])


def _check_callback(item: UserSetting) -> None:
    """Refuse a callback of Lightning, named with or without its module; pass other settings.

    Raises:
        UsageError: The callback is Lightning's; the message names what to use instead.
    """
    name, is_callback = str(item.text), item.keys[:2] == ("loop", "callbacks")
    bare = name in foreign.REPLACEMENTS and name not in catalogue.classes()
    if is_callback and (bare or name.startswith(("lightning.", "pytorch_lightning."))):
        raise item.error(foreign.refusal(name.rpartition(".")[2]))


def named_class(name: str) -> type | None:
    """Return the class of a name or a dotted path; ``None`` if the path names something else.

    Raises:
        UsageError: The name or path does not exist.
    """
    return resolve(UserSetting((), name, ""))


def explain(error: Exception, settings: UserSettings, trust: Trust = CONFIGURATION) -> str:
    """Return a one-line message for an error of the parser.

    The parser nests its errors, one for each level of keys; the innermost says what is wrong.

    Raises:
        UsageError: The cause is a misspelt class or a callback of Lightning, which has a clearer
            message of its own.
    """
    keys: list[str] = []
    words: list[str] = []
    message = last = ""
    cause: BaseException = error
    link: BaseException | None = error
    while link is not None:
        cause, message = link, str(link)
        if message != last and (key := re.match(r'Parser key "([^"]+)":', message)):
            keys += key[1].split(".")
        words = _literals(message) or words
        last = message
        link = link.__cause__ or link.__context__
    path = short_keys(keys)
    if not path:
        return in_plain_words(message)
    there = settings_of(settings, path)
    known = catalogue.classes()
    if there:
        _check_callback(there[-1])
        if isinstance(cause, AttributeError | ImportError):
            resolve(there[-1], trust)
    what = in_plain_words(message)
    if "Option 'class_path' is not accepted" in message:
        what = "put the arguments of a class under init_args"
    elif unknown := re.search(r"dot import path string: (\S+)", message):
        what = _no_class(unknown[1], words, known)
    elif denied := re.search(r"Importing '(\S+)' is not allowed", message):
        what = f"names {denied[1]}, and no configuration may name a module of Python's"
    elif value := re.search(_NO_OBJECT, message):
        what = f"expected {value[1]}: the name of a class, or class_path and init_args; "
        what += f"got {value[2]}"
    elif re.search(_CLASSLESS, message) and not any(one.keys[-1] == "class_path" for one in there):
        what = "no class is given: name it as class_path, and put its arguments under init_args"
    elif untyped := re.search(r"Parameter '(\w+)' from '(\S+?)(?:\.__init__)?' does not", message):
        what = f"declare the type of the argument {untyped[1]!r} of {untyped[2]}"
    elif unfit := re.search(r"path (\S+) does not implement protocol (\w+)", message):
        what = _unlike(*unfit.groups())
    return message_at(there[-1].place if there else "", path, what)


def _no_class(name: str, words: Sequence[str], known: Collection[str]) -> str:
    """Return the message about a name that is neither a fitting class nor one of some words."""
    if name in known:
        return f"{name} is not of the kind that is expected here"
    if name in words:
        return f"{name} is a word without arguments: name its class as class_path"
    what = f"there is no class {name!r}"
    if words:
        what = f"{name!r} is not one of {', '.join(words)}, nor a class"
    return what + (nearest(name, words) or nearest(name, known))


def _unlike(path: str, name: str) -> str:
    """Return the message about a class that does not implement a protocol, such as Sampler."""
    protocol = catalogue.classes()[name]
    public = [n for n in vars(protocol) if n == "__call__" or not n.startswith("_")]
    methods = {n: vars(protocol)[n] for n in public if inspect.isfunction(vars(protocol)[n])}
    like = ", ".join(f"{n}{inspect.signature(m)}" for n, m in methods.items()).replace("'", "")
    return (
        f"{path} does not look like a {name}: derive it from {protocol.__module__}.{name}, and "
        f"declare the types of {like}"
    )


def _literals(message: str) -> list[str]:
    """Return the words that a setting accepts beside a class."""
    literal = re.search(r"Subtypes: .*Literal\[(.*?)\]", message)
    return [] if literal is None else [word.strip("' ") for word in literal[1].split(",")]


def unknown(item: UserSetting, what: str, choices: Iterable[str]) -> UsageError:
    """Return the error about a key, with the nearest known one or all of them."""
    near = hint(item.keys[-1], sorted(choices))
    return item.error(what + near)
