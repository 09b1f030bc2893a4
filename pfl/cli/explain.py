"""One-line errors of configurations: the place, the given value, and the right ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten

import yaml

from pfl.callbacks import foreign
from pfl.cli import catalogue
from pfl.cli.outline import BrokenError
from pfl.cli.yaml_text import YamlError, read

Keys = tuple[str, ...]
# Keys that only spell out a class and its arguments; "model.net.hidden" leaves them out.
_SPELLING = ("init_args", "dict_kwargs")


class UsageError(Exception):
    """A request that cannot be met; its message is shown to the user without a traceback."""


@dataclass(frozen=True)
class Given:
    """One setting, as the user wrote it.

    Attributes:
        keys: Its keys from the top, without ``init_args``.
        text: The value, if it is a scalar.
        place: ``<file>:<line>``, or the flag.
    """

    keys: Keys
    text: str | None
    place: str

    @property
    def is_null(self) -> bool:
        """``True`` if the value is written as null."""
        return self.text in ("null", "~", "")


def sources(argv: Sequence[str]) -> list[Given]:
    """Return the settings of a command line and its configuration files, later ones last.

    Raises:
        UsageError: A configuration file is missing or is not YAML.
    """
    found: list[Given] = []
    for word, after in zip(argv, [*argv[1:], "--"], strict=False):
        if not word.startswith("--"):
            continue
        flag, equals, value = word.partition("=")
        text = value if equals else None if after.startswith("--") else after
        if flag == "--config" and text is not None:
            found += _file(Path(text))
        else:
            keys = flag.removeprefix("--").rstrip("+").split(".")
            found.append(Given(_spoken(keys), text, flag))
    return found


def _file(path: Path) -> list[Given]:
    if not path.is_file():
        near = _nearest(path.name, [file.name for file in path.parent.glob("*.yaml")])
        raise UsageError(f"--config {path}: there is no such file{near}")
    try:
        node = yaml.compose(read(path), yaml.SafeLoader)
    except YamlError as error:
        raise UsageError(f"{path}:{error.line}: {error}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}:{line}: this is not YAML ({error.problem})") from error
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{path}:1: expected keys and values at the top level")
    return list(_walk(node, (), path))


def _walk(node: yaml.Node, keys: Keys, path: Path) -> Iterator[Given]:
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _walk(item, (*keys, str(number)), path)
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set[str]()
    for key, value in node.value:
        place = f"{path}:{key.start_mark.line + 1}"
        if key.value in seen:
            raise UsageError(f"{place}: the key {key.value!r} is given twice")
        seen.add(key.value)
        # The parser accepts dotted keys too, as W&B writes them.
        inner = _spoken((*keys, *str(key.value).split(".")))
        if inner != keys:
            yield Given(inner, value.value if isinstance(value, yaml.ScalarNode) else None, place)
        yield from _walk(value, inner, path)


def _spoken(keys: Iterable[str]) -> Keys:
    return tuple(key for key in keys if key not in _SPELLING)


def find_misspelling(
    given: Sequence[Given],
    top: Mapping[str, type | None],
    arguments: Callable[[type], Sequence[str]],
) -> None:
    """Check that every key and every class exists.

    Args:
        given: All settings.
        top: The top-level keys, each with its class if that is fixed.
        arguments: Returns the names of a class's arguments.

    Raises:
        UsageError: A key or a class does not exist.
    """
    known = catalogue.classes()
    at: dict[Keys, type | None] = {(key,): kind for key, kind in top.items()}
    # Made by a function, of which only the parser knows the arguments.
    made = set[Keys]()
    for item in given:
        *parents, name = item.keys
        parent = tuple(parents)
        if item.keys[0] not in top:
            section = Given(item.keys[:1], item.text, item.place)
            raise _unknown(section, f"there is no key {item.keys[0]!r}", top)
        kind = at.get(parent)
        if name in ("class_path", "help") and item.text is not None:
            at[parent] = _resolve(item, known)
            made |= {parent} if at[parent] is None else set()
        elif kind is not None and name not in (takes := arguments(kind)):
            raise _unknown(item, f"{kind.__name__} has no argument {name!r}", takes)
        elif kind is None and len(parent) == 1 and parent not in made:
            raise _unknown(item, f"{parent[0]} has no class", ("class_path", "init_args"))
        elif item.text in known:
            at[item.keys] = known[item.text]


def _resolve(item: Given, known: Mapping[str, type]) -> type | None:
    """Return the class that a setting names; ``None`` for a function that makes objects."""
    name = str(item.text)
    if item.keys[:2] == ("loop", "callbacks"):
        _check_callback(item)
    if name in known:
        return known[name]
    try:
        kind = catalogue.find(name)
    except BrokenError as error:
        raise UsageError(_line(item.place, item.keys, str(error))) from error
    except ImportError as error:
        near = _nearest(name, catalogue.neighbours(name) or known)
        what = f"there is no class {name!r}{near}"
        raise UsageError(_line(item.place, item.keys, what)) from error
    return kind if isinstance(kind, type) else None


def _check_callback(item: Given) -> None:
    """Refuse a callback of Lightning, named with or without its module.

    Raises:
        UsageError: The callback is Lightning's; the message names what to use instead.
    """
    name = str(item.text)
    bare = name in foreign.REPLACEMENTS and name not in catalogue.classes()
    if bare or name.startswith(("lightning.", "pytorch_lightning.")):
        raise UsageError(_line(item.place, item.keys, foreign.refusal(name.rpartition(".")[2])))


def named_class(name: str) -> type | None:
    """Return the class of a name or a dotted path; ``None`` if the path names something else.

    Raises:
        UsageError: The name or path does not exist.
    """
    return _resolve(Given((), name, ""), catalogue.classes())


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
        if message != last and (found := re.match(r'Parser key "([^"]+)":', message)):
            keys += found[1].split(".")
        words = _literals(message) or words
        last = message
        link = link.__cause__ or link.__context__
    path = _spoken(keys)
    if not path:
        return _plain(message)
    there = _there(given, path)
    known = catalogue.classes()
    if there and path[:2] == ("loop", "callbacks"):
        _check_callback(there[-1])
    if there and isinstance(cause, AttributeError | ImportError):
        _resolve(there[-1], known)
    said = _plain(message)
    if unknown := re.search(r"dot import path string: (\S+)", message):
        name, what = unknown[1], f"not one of {', '.join(words)}, nor a class"
        said = f"there is no class {name!r}" if not words else f"{name!r} is {what}"
        said += _nearest(name, words) or _nearest(name, known)
    return _line(there[-1].place if there else "", path, said)


def place(what: str, keys: Sequence[str], given: Sequence[Given]) -> str:
    """Return a message about a key, preceded by the place where the key is set."""
    path = _spoken(keys)
    there = _there(given, path)
    return _line(there[-1].place if there else "", path, what)


def _there(given: Sequence[Given], path: Keys) -> list[Given]:
    """Return the settings of a key, or of the class given for it."""
    return [item for item in given if item.keys in (path, (*path, "class_path"))]


def locate(message: str, given: Sequence[Given], part: str) -> str:
    """Add the place of the setting that a message is about, found by its name or its value.

    Args:
        message: What is wrong.
        given: All settings.
        part: Top-level key below which the cause lies; its own place is used if no setting below
            it fits.
    """
    words = re.findall(r"\w+", message)
    inner = [item for item in reversed(given) if item.keys[0] == part and len(item.keys) > 1]
    named = [item for word in words for item in inner if _path(item.keys)[-1] == word]
    # A short value such as 3 may belong to any setting.
    shown = [item for item in inner if item.text and len(item.text) > 3 and item.text in message]
    itself = [item for item in inner if item.keys == (part, "class_path")]
    # What was added to a file is more often wrong than what is in it.
    flags = [item for item in (*named, *shown) if item.place.startswith("--")]
    for item in (*flags, *named, *shown, *itself):
        return _line(item.place, item.keys, message)
    return message


@contextmanager
def explained(given: Sequence[Given], *kinds: type[Exception], part: str = "") -> Iterator[None]:
    """Turn errors of these kinds into usage errors that name the place of their cause.

    Args:
        given: All settings.
        kinds: Classes of the errors.
        part: See :func:`locate`.

    Raises:
        UsageError: An error of these kinds was raised inside.
    """
    try:
        yield
    except kinds as error:
        raise UsageError(locate(_plain(str(_cause(error)), 1500), given, part)) from error


def _cause(error: BaseException) -> BaseException:
    """Return the original error behind those in which the parser wraps it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    home = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    inner = error.__cause__ or error.__context__
    return _cause(inner) if home.startswith("jsonargparse.") and inner is not None else error


def _plain(message: str, limit: int = 400) -> str:
    """Return a message of the parser in plain words, without Python's notation for types."""
    message = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", message.strip())
    message = re.sub(r"(?:typing\.)?Literal\[(.*?)\]", r"one of \1", message)
    message = re.sub(r"^Expected an? (.*)\. Got value: (.*)$", r"expected \1, got \2", message)
    return shorten(message, limit)


def _literals(message: str) -> list[str]:
    """Return the words that a setting accepts beside a class."""
    found = re.search(r"Subtypes: .*Literal\[(.*?)\]", message)
    return [] if found is None else [word.strip("' ") for word in found[1].split(",")]


def _unknown(item: Given, what: str, choices: Iterable[str]) -> UsageError:
    name = item.keys[-1]
    near = _nearest(name, choices) or f"; choose from {', '.join(sorted(choices))}"
    return UsageError(_line(item.place, item.keys, what + near))


def _line(place: str, keys: Keys, what: str) -> str:
    """Return place, keys and message in one line; a flag already names its keys."""
    path = ".".join(_path(keys))
    return ": ".join(part for part in (place, "" if place.startswith("--") else path, what) if part)


def _path(keys: Keys) -> Keys:
    return tuple(key for key in keys if key != "class_path")


def _nearest(name: str, choices: Iterable[str]) -> str:
    known = list(choices)
    same = [choice for choice in known if choice.lower() == name.lower()]
    close = same[-1:] or get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
