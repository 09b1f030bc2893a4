"""One-line errors of configurations: place, value given, values expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import yaml

from pfl.core.failure import failure_line
from pfl.disk import reading
from pfl.disk.nearest import nearest, nearest_file
from pfl.disk.yaml_text import YamlError, composed, content_of
from pfl.federation.identity import STARTED

Keys = tuple[str, ...]
# Keys that only spell out a class and its arguments, and are omitted in "model.net.hidden".
_SPELLING = ("init_args", "dict_kwargs")


class UsageError(Exception):
    """An error of the user, whose message is shown without a traceback.

    Attributes:
        code: The command's exit code.
    """

    code = 2


class FailedError(UsageError):
    """A run failed: its numbers are not finite, or the method raised an error."""

    code = 1


class MissingError(UsageError):
    """Numbers cannot be compared because their data are missing."""

    code = 3


@dataclass(frozen=True)
class UserSetting:
    """One setting, as the user wrote it.

    Attributes:
        keys: Its keys from the top, without ``init_args``.
        text: The value, if it is a scalar.
        place: ``<file>:<line>``, or the flag.
        node: The value in a file; ``None`` for a flag, whose text is read by its argument's type.
        extra: Whether it is one of ``dict_kwargs``, which a class may take without declaring them.
        dotted: Whether its key in the file has a dot, as W&B writes keys.
    """

    keys: Keys
    text: str | None
    place: str
    node: yaml.Node | None = None
    extra: bool = False
    dotted: bool = False

    @property
    def is_flag(self) -> bool:
        """Whether it is a flag, and not a key of a file."""
        return self.place.startswith("--")

    @property
    def appends(self) -> bool:
        """Whether it is a flag that adds its value to a list."""
        return self.place.endswith("+") and self.keys == keys_of(self.place)

    @property
    def value(self) -> Any:  # noqa: ANN401
        """The value: plain data in a file, the text of a flag."""
        return self.text if self.node is None else content_of(self.node)

    def inner(self, node: yaml.Node) -> Iterator[UserSetting]:
        """Yield the settings in a flag's text, which was composed to a node."""
        return _walk(node, self.keys, lambda key: self.place)

    def error(self, what: str) -> UsageError:
        """Return an error about the setting, with its place."""
        return UsageError(message_at(self.place, self.keys, what))


UserSettings: TypeAlias = Sequence[UserSetting]


def sources(argv: Sequence[str]) -> list[UserSetting]:
    """Return the settings of a command line and its configuration files, later ones last.

    Raises:
        UsageError: A configuration file is missing or is not YAML.
    """
    settings = list[UserSetting]()
    for flag, text in flags(argv):
        if flag == "--config" and text is not None:
            settings += _in_file(text, _file(Path(text)))
        else:
            settings.append(UserSetting(keys_of(flag), text, flag))
    return settings


def flags(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the flags of a command line with their values, or ``None`` if they have none."""
    for word, after in zip(argv, [*argv[1:], "--"], strict=False):
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            yield flag, value if equals else None if after.startswith("--") else after


def without(argv: Sequence[str], drops: Callable[[str], bool]) -> list[str]:
    """Return a command line without some flags and their values."""
    left, of_dropped = list[str](), False
    for word in argv:
        if word.startswith("--"):
            dropped = drops(word.partition("=")[0])
            of_dropped = dropped and "=" not in word
        else:
            dropped, of_dropped = of_dropped, False
        left += [] if dropped else [word]
    return left


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Convert settings with dotted keys to flags of ``pfl fit``."""
    return [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]


def _file(path: Path) -> yaml.MappingNode:
    if not path.is_file():
        what = "this is a folder" if path.is_dir() else f"there is no such file{nearest_file(path)}"
        raise UsageError(f"--config {path}: {what}")
    try:
        node = composed(reading.text(path) or "")
    except reading.FileError as error:
        raise UsageError(str(error)) from error
    except YamlError as error:
        raise UsageError(f"{path}:{error.line}: {error}") from error
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{path}:1: expected keys and values at the top level")
    if any(key.value == STARTED for key, _ in node.value):
        raise UsageError(f"{path} describes a run started from Python: repeat it from Python")
    return node


def _in_file(name: str, node: yaml.MappingNode) -> Iterator[UserSetting]:
    return _walk(node, (), lambda key: f"{Path(name)}:{key.start_mark.line + 1}")


def _walk(
    node: yaml.Node, keys: Keys, place_of: Callable[[yaml.Node], str], extra: bool = False
) -> Iterator[UserSetting]:
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            inner = (*keys, str(number))
            if isinstance(item, yaml.ScalarNode):
                yield UserSetting(inner, item.value, place_of(item), item)
            yield from _walk(item, inner, place_of)
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set[str]()
    # A class precedes its arguments, whatever their order in the file.
    for key, value in sorted(node.value, key=lambda pair: pair[0].value != "class_path"):
        place = place_of(key)
        if key.value in seen:
            raise UsageError(f"{place}: the key {key.value!r} is given twice")
        seen.add(key.value)
        if what := _misshapen(key.value, value, "class_path" in seen):
            raise UsageError(message_at(place, (*keys, key.value), what))
        # The parser accepts dotted keys too, as W&B writes them.
        inner = short_keys((*keys, *str(key.value).split(".")))
        if inner != keys:
            text = value.value if isinstance(value, yaml.ScalarNode) else None
            yield UserSetting(inner, text, place, value, extra, "." in str(key.value))
        yield from _walk(value, inner, place_of, key.value == "dict_kwargs")


def _misshapen(key: str, value: yaml.Node, of_class: bool) -> str | None:
    """Return what is wrong with a value that is neither a class name nor arguments."""
    known = ("class_path", *_SPELLING)
    if of_class and key.partition(".")[0] not in known and not nearest(key, known):
        return f"put {key} under init_args"
    if key == "class_path" and not isinstance(value, yaml.ScalarNode):
        return "expected a class name"
    empty = isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null")
    if key in _SPELLING and not isinstance(value, yaml.MappingNode) and not empty:
        return "expected arguments and values, such as lr: 0.1"
    return None


def keys_of(word: str) -> Keys:
    """Return the keys that a flag sets; none for a word that is not a flag."""
    flag = word.partition("=")[0]
    return short_keys(flag[2:].rstrip("+").split(".")) if flag.startswith("--") else ()


def refuse(flags: Iterable[str], reasons: Mapping[str, str]) -> None:
    """Reject flags that set certain dotted keys.

    Raises:
        UsageError: There is such a flag; the message gives its reason.
    """
    refused = {short_keys(key.split(".")): reason for key, reason in reasons.items()}
    for flag in flags:
        if (reason := refused.get(keys_of(flag))) is not None:
            raise UsageError(f"{flag}: {reason}")


def short_keys(keys: Iterable[str]) -> Keys:
    """Remove the keys that only spell out a class."""
    return tuple(key for key in keys if key not in _SPELLING)


def placed(what: str, keys: Sequence[str], settings: UserSettings, file: str = "") -> str:
    """Return a message about a key, preceded by the place where the key or its parent is set.

    ``file`` is the place if the user has set neither.
    """
    path = short_keys(keys)
    outer = (settings_of(settings, path[:count]) for count in range(len(path), 0, -1))
    return message_at(next((there[-1].place for there in outer if there), file), tuple(keys), what)


def settings_of(settings: UserSettings, path: Keys) -> list[UserSetting]:
    """Return the settings of a key or of its class."""
    return [item for item in settings if item.keys in (path, (*path, "class_path"))]


def locate(message: str, settings: UserSettings, part: str) -> str:
    """Prefix a message of a class with the place of the setting that it is about.

    Only settings below the top-level key ``part`` are searched; its own place is the fallback.
    """
    there = [item for item in reversed(settings) if item.keys[0] == part]
    # A part is recognised by its class: in a message, "data" is an ordinary word.
    itself = [item for item in there if _path(item.keys) == (part,) and item.text]
    inner = [one for one in there if len(_path(one.keys)) > 1 and not one.keys[-1].isdigit()]
    ranked = [(_rank(message, item), item) for item in inner]
    ranked.sort(key=lambda pair: pair[0])
    found = [item for rank, item in ranked if rank < _UNFIT]
    for item in (*found, *itself):
        return message_at(item.place, item.keys, message)
    return message


# The rank of a setting that a message does not show in any way.
_UNFIT = 9


def _rank(message: str, item: UserSetting) -> int:
    """Return how well a setting fits a message: 0 is best."""
    text, name = item.text or "", _path(item.keys)[-1]
    # A short value such as 3 could belong to any setting, unless it is quoted.
    if text and repr(text) in message:
        return 0
    if len(text) > 3 and message.startswith(text) and _stands(text, message[: len(text) + 2]):
        return 1
    # A flag is more likely wrong than a file that it overrides, even if only a number fits.
    later = 0 if item.is_flag else 2
    if name in re.findall(r"\w+", message):
        return 2 + later
    if any(len(word) > 3 and _stands(word, message) for word in (text, text.rpartition(".")[2])):
        return 3 + later
    return 7 if item.is_flag and _numbers(text) & _numbers(message) else _UNFIT


def _stands(word: str, message: str) -> bool:
    """Return ``True`` if a message has a word that is no part of another, such as of a path."""
    return re.search(rf"(?<![\w./-]){re.escape(word)}(?![\w-]|\.\w)", message) is not None


def _numbers(text: str) -> set[float]:
    numbers = re.findall(r"(?<![\w.-])-?\d+\.?\d*(?:[eE][+-]?\d+)?(?!\w)", text)
    return {float(number) for number in numbers}


@contextmanager
def explained(settings: UserSettings, *refusals: type[Exception], part: str = "") -> Iterator[None]:
    """Convert failures of a run, and errors of some classes, to messages for the user.

    Raises:
        FailedError: A run failed; see :mod:`pfl.core.failure`.
        UsageError: Such an error was raised; the message names the place of its cause.
    """
    try:
        yield
    except Exception as error:
        if failure := failure_line(error):
            raise FailedError(failure) from error
        if not isinstance(error, refusals):
            raise
        message = in_plain_words(str(_cause(error)), 1500)
        raise UsageError(locate(message, settings, part)) from error


def _cause(error: BaseException) -> BaseException:
    """Return the original error behind the parser's wrappers."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    home = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    inner = error.__cause__ or error.__context__
    return _cause(inner) if home.startswith("jsonargparse.") and inner is not None else error


def in_plain_words(message: str, limit: int = 400) -> str:
    """Return a message in one line without Python's notation for classes, and cut it."""
    message = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", message.strip())
    # A word longer than the limit would hide everything after it.
    return shorten(with_short_words(message, limit // 2), limit)


def with_short_words(message: str, length: int) -> str:
    """Cut words of ``length`` or more characters in a message to half of it."""
    return re.sub(rf"\S{{{length},}}", lambda word: f"{word[0][: length // 2]}...", message)


def message_at(place: str, keys: Keys, what: str) -> str:
    """Return place, keys and message in one line; flags already contain their keys."""
    path = "" if _path(keys_of(place)) == _path(keys) else ".".join(_path(keys))
    return ": ".join(part for part in (place, path, what) if part)


def _path(keys: Keys) -> Keys:
    return tuple(key for key in keys if key != "class_path")


def run_folder(checkpoint: Path) -> Path:
    """Return the run folder named by ``--ckpt_path``, directly or through a file in it."""
    return checkpoint if checkpoint.is_dir() else checkpoint.absolute().parent.parent
