"""Misspelt keys and classes of a configuration, and what the parser's errors mean."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pfl.callbacks import foreign
from pfl.cli import catalogue
from pfl.cli.explain import Given, Keys, UsageError, line, plain, settings_of, spoken
from pfl.cli.known import OF_TORCH, BrokenError, Known, classes, is_class, of_torch
from pfl.disk.nearest import hint, nearest
from pfl.imports.hints import declared
from pfl.imports.trust import CONFIGURATION, TrustError


def find_misspelling(
    given: Sequence[Given],
    top: Mapping[str, str],
    loop: Known | None,
    resolve: Callable[[Given], Known | None],
    named: Callable[[str], Known | None],
) -> None:
    """Check that every key and every class exists.

    Args:
        given: All settings.
        top: The types of the top-level keys, as in :attr:`Known.arguments`.
        loop: The class of the loop.
        resolve: Returns the class that a setting names; ``None`` if its arguments are not known.
        named: Returns the class of a name that needs no module; ``None`` if there is none.

    Raises:
        UsageError: A key or a class does not exist, or a word is no value of its key.
    """
    at: dict[Keys, Known | None] = {(): Known("", "", arguments=top), ("loop",): loop}
    # Named by a path or made by a function: only the parser knows the arguments.
    made = set[Keys]()
    for item in given:
        *parents, name = item.keys
        parent = tuple(parents)
        if item.keys[0] not in top:
            section = Given(item.keys[:1], item.text, item.place)
            raise unknown(section, f"there is no key {item.keys[0]!r}", top)
        kind = at.get(parent)
        if name in ("class_path", "help") and item.text is not None:
            _check_word(replace(item, keys=parent), at.get(parent[:-1]))
            at[parent] = resolve(item)
            made |= {parent} if at[parent] is None else set()
        elif kind is not None and not kind.may_take(name):
            raise unknown(item, f"{kind.name} has no argument {name!r}", kind.arguments)
        elif kind is None and len(parent) == 1 and parent not in made:
            raise unknown(item, f"{parent[0]} has no class", ("class_path", "init_args"))
        elif item.text is not None:
            _check_word(item, kind)
            at[item.keys] = named(item.text)
            made |= {item.keys}


def _check_word(item: Given, kind: Known | None) -> None:
    """Refuse a word where a number, another word or a class of this project is expected."""
    text = item.text or ""
    # What is no word, such as a list or a path, is left to the parser.
    if kind is None or item.is_null or not text.isidentifier():
        return
    types = [one for one in kind.arguments.get(item.keys[-1], "").split(" | ") if one != "None"]
    words = [one.strip("'") for one in types if one.startswith("'")]
    others = [one for one in types if not one.startswith("'")]
    what = None
    if others in (["int"], ["float"]) and not words:
        what = f"expected {others[0]}, got {text}"
    elif words and not others and text not in words:
        what = f"expected one of {', '.join(map(repr, words))}, got {text}"
    elif _are_classes(others) and text not in words and not is_class(text):
        named = {*classes(), *of_torch(others)}
        # A file may stand instead of some classes.
        is_file = "str" in others and Path(text).exists()
        what = None if is_file or text in named else _no_class(text, words, named)
    if what is not None:
        raise UsageError(line(item.place, item.keys, what))


def _are_classes(types: Sequence[str]) -> bool:
    """Return ``True`` if only a class of this project or of torch fits, or the path of a file."""
    kinds = {*types} - {"str"}
    return bool(kinds) and kinds <= {*classes(), *OF_TORCH}


def resolve(item: Given) -> type | None:
    """Return the class that a setting names; ``None`` for a function that makes objects."""
    name, known = str(item.text), catalogue.classes()
    if item.keys[:2] == ("loop", "callbacks"):
        _check_callback(item)
    if name in known:
        return known[name]
    try:
        CONFIGURATION.check_name(name)
        kind = catalogue.find(name)
    except TrustError as error:
        raise UsageError(line(item.place, item.keys, error.what)) from error
    except BrokenError as error:
        raise UsageError(line(item.place, item.keys, str(error))) from error
    except ImportError as error:
        near = nearest(name, catalogue.neighbours(name)) or nearest(name.rpartition(".")[2], known)
        what = f"there is no class {name!r}{near}"
        raise UsageError(line(item.place, item.keys, what)) from error
    return kind if isinstance(kind, type) else None


def told(kind: type | None) -> Known | None:
    """Return name and arguments of an imported class."""
    return (
        None
        if kind is None
        else Known(kind.__name__, "", arguments=dict.fromkeys(declared(kind), ""))
    )


def check_names(given: Sequence[Given]) -> None:
    """Refuse classes that may not be named, before the parser imports their modules.

    Raises:
        TrustError: A class may not be named.
        UsageError: A callback is Lightning's.
    """
    for item in given:
        if item.keys[-1] == "class_path" and "." in (item.text or ""):
            if item.keys[:2] == ("loop", "callbacks"):
                _check_callback(item)
            CONFIGURATION.check_name(str(item.text), item.keys[:-1])


def _check_callback(item: Given) -> None:
    """Refuse a callback of Lightning, named with or without its module.

    Raises:
        UsageError: The callback is Lightning's; the message names what to use instead.
    """
    name = str(item.text)
    bare = name in foreign.REPLACEMENTS and name not in catalogue.classes()
    if bare or name.startswith(("lightning.", "pytorch_lightning.")):
        raise UsageError(line(item.place, item.keys, foreign.refusal(name.rpartition(".")[2])))


def named_class(name: str) -> type | None:
    """Return the class of a name or a dotted path; ``None`` if the path names something else.

    Raises:
        UsageError: The name or path does not exist.
    """
    return resolve(Given((), name, ""))


def explain(error: Exception, given: Sequence[Given]) -> str:
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
    path = spoken(keys)
    if not path:
        return plain(message)
    there = settings_of(given, path)
    known = catalogue.classes()
    if there and path[:2] == ("loop", "callbacks"):
        _check_callback(there[-1])
    if there and isinstance(cause, AttributeError | ImportError):
        resolve(there[-1])
    said = plain(message)
    if unknown := re.search(r"dot import path string: (\S+)", message):
        said = _no_class(unknown[1], words, known)
    elif denied := re.search(r"Importing '(\S+)' is not allowed", message):
        said = f"names {denied[1]}, and no configuration may name a module of Python's"
    elif unfit := re.search(r"path (\S+) does not implement protocol (\w+)", message):
        said = _unlike(*unfit.groups())
    return line(there[-1].place if there else "", path, said)


def _no_class(name: str, words: Sequence[str], known: Collection[str]) -> str:
    """Return the message about a name that is neither a fitting class nor one of some words."""
    if name in known:
        return f"{name} is not of the kind that is expected here"
    what = f"not one of {', '.join(words)}, nor a class"
    said = f"{name!r} is {what}" if words else f"there is no class {name!r}"
    return said + (nearest(name, words) or nearest(name, known))


def _unlike(path: str, name: str) -> str:
    """Return what a class lacks to be of a kind that is told by its methods, such as a sampler."""
    kind = catalogue.classes()[name]
    named = [name for name in vars(kind) if name == "__call__" or not name.startswith("_")]
    methods = {n: vars(kind)[n] for n in named if inspect.isfunction(vars(kind)[n])}
    like = ", ".join(f"{n}{inspect.signature(m)}" for n, m in methods.items()).replace("'", "")
    return (
        f"{path} does not look like a {name}: derive it from {kind.__module__}.{name}, and declare "
        f"the types of {like}"
    )


def _literals(message: str) -> list[str]:
    """Return the words that a setting accepts beside a class."""
    literal = re.search(r"Subtypes: .*Literal\[(.*?)\]", message)
    return [] if literal is None else [word.strip("' ") for word in literal[1].split(",")]


def unknown(item: Given, what: str, choices: Iterable[str]) -> UsageError:
    """Return the error about a key, with the nearest known one or all of them."""
    near = hint(item.keys[-1], sorted(choices))
    return UsageError(line(item.place, item.keys, what + near))
