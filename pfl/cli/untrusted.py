"""Configurations that somebody else wrote, which may do less than the user's own.

There are two levels of trust. What the user wrote may name modules of the working folder, places
and addresses. The configuration in a run folder may come from anybody: it may name classes of this
project and of installed plug-ins alone, no place but those that the user gives, and nothing in it
is downloaded, logged elsewhere or runs elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from pfl.cli import catalogue
from pfl.cli.explain import Keys, UsageError, flags, short_keys
from pfl.cli.joining import run_folder
from pfl.disk import reading
from pfl.engines.named import OWN
from pfl.imports import hints
from pfl.imports.trust import Trust, TrustError, check_calls, mapping_of

FLAG = "--trust"
# Engines that run in this process; all others connect to an address, or start further processes.
_LOCAL = ("auto", "sequential", "threads", "vectorised")
# Keys that are not taken from the file, and what is taken instead.
_INSTEAD: Mapping[str, Any] = {
    **{"loop.workers": None, "loop.loggers": None, "loop.kept_memory": None},
    **{"loop.default_root_dir": None, "data.cache_dir": None, "data.download": False},
}
# Those of them that say nothing about the run.
_SILENT = ("loop.workers", "loop.kept_memory", "loop.default_root_dir", "data.cache_dir")
_SECTIONS = ("seed", "loop", "model", "data")
# Texts of the loop that name no place.
_WORDS = (("loop", "name"), ("loop", "accelerator"), ("loop", "devices"))
# Arguments that name places, whatever stands in them.
_PLACES = {
    *("root", "path", "source", "folder", "file", "save_dir", "cache_dir", "address", "kit"),
    *("weights", "checkpoint", "hierarchy", "superclasses", "root_certificates", "superlink"),
}
_PLACE = re.compile(r"[~/\\]|.*(:|\\|(^|/)\.\.(/|$))")
# The most rounds, and the largest other whole number; seeds may be larger.
ROUNDS, NUMBER = 10_000, 1_000_000


class PlaceError(UsageError):
    """A file of somebody else names a place that the user has not given."""


@dataclass(frozen=True)
class UntrustedFile:
    """A configuration file that somebody else wrote.

    Attributes:
        file: The file.
        option: What the user gives a place with, before its key.
        joins: Whether its data are replaced by those of clients that join.
    """

    file: Path
    option: str = "--"
    joins: bool = False

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The content.

        Raises:
            UsageError: It cannot be read.
        """
        try:
            return reading.read_yaml(self.file)
        except (reading.FileError, OSError) as error:
            raise UsageError(str(error)) from error

    @cached_property
    def instead(self) -> Mapping[str, Any]:
        """What stands for keys of the file that are not taken from it, by dotted keys."""
        loop, data = (mapping_of(self.content.get(key)) or {} for key in ("loop", "data"))
        arguments = data.get("init_args") or {} if isinstance(data, Mapping) else {}
        given = {"loop": loop, "data": arguments}
        values = {}
        for key, value in _INSTEAD.items():
            section, _, name = key.partition(".")
            if isinstance(given[section], Mapping) and given[section].get(name) not in (
                value,
                None,
            ):
                values[key] = value
        if isinstance(loop, Mapping) and (engine := _engine(loop.get("engine"))) is not None:
            values["loop.engine"] = engine
        return values

    @property
    def note(self) -> str:
        """What is not taken from the file, in one line; empty if all is."""
        said = [f"{k} is {_yaml(v)} here" for k, v in self.instead.items() if k not in _SILENT]
        return f"{self.file} may be somebody else's: {', '.join(said)}" if said else ""

    def flags(self) -> Iterator[str]:
        """Yield the flags that replace what is not taken from the file."""
        for key, value in self.instead.items():
            yield f"--{key.replace('data.', 'data.init_args.')}={_yaml(value)}"

    def check(self, types: Mapping[str, Any], trust: Trust) -> None:
        """Check the file before a parser reads it, which imports what it names.

        Raises:
            TrustError: It names what it may not name.
        """
        for key in self.content:
            if key not in _SECTIONS:
                raise TrustError(f"expected {', '.join(_SECTIONS)} alone", (str(key),))
        content = _spelled(self.content)
        for key, hint in types.items():
            section, _, name = key.partition(".")
            value = content.get(section)
            if name and not isinstance(value, Mapping):
                continue
            if name:
                value = value.get(name)
            if value is not None:
                check_calls(value, hint, key.split("."), trust)

    def check_values(self, values: Namespace, given: Collection[Keys], trust: Trust) -> None:
        """Check the values that a parser has read of the file.

        Args:
            values: The values.
            given: The keys that the user has set, and which are not looked at.
            trust: What may be named.

        Raises:
            TrustError: A number is too large, or a metric may not be named.
            PlaceError: A place is named that the user has not given.
        """
        if (rounds := values.loop.rounds) > ROUNDS and ("loop", "rounds") not in given:
            raise TrustError(f"{rounds:,} rounds: {_most(ROUNDS)}", ("loop", "rounds"))
        for section in ("loop", "model", "data"):
            for keys, value in self._leaves(values.get(section), (section,), None):
                if not any(keys[: len(path)] == path for path in given) and keys not in _WORDS:
                    self._check_leaf(keys, value, trust)

    def _leaves(self, value: Any, keys: Keys, usual: Any) -> Iterator[tuple[Keys, Any]]:  # noqa: ANN401
        """Yield the plain values within a value that are not the usual ones, with their keys."""
        content = mapping_of(value)
        if isinstance(content, list | tuple):
            for number, item in enumerate(content):
                yield from self._leaves(item, (*keys, str(number)), None)
        elif not isinstance(content, Mapping):
            if value != usual:
                yield short_keys(keys), value
        elif "class_path" in content:
            made = catalogue.find(content["class_path"])
            usual = hints.defaults(made)
            source = getattr(made, "source_argument", None) if self.joins else None
            for part in ("init_args", "dict_kwargs"):
                for name, item in (mapping_of(content.get(part)) or {}).items():
                    if name != source or keys != ("data",):
                        yield from self._leaves(item, (*keys, name), usual.get(name))
        else:
            for name, item in content.items():
                yield from self._leaves(item, (*keys, str(name)), None)

    def _check_leaf(self, keys: Keys, value: Any, trust: Trust) -> None:  # noqa: ANN401
        if isinstance(value, str) and _is_place(keys[-1], value):
            key = ".".join(keys)
            raise PlaceError(
                f"{self.file}: {key} is {value}, but a file that may be somebody else's names no "
                f"place: give yours with {self.option}{key}=PLACE, or {FLAG} the file"
            )
        if isinstance(value, str) and keys[:2] == ("data", "metrics") and "." in value:
            trust.check_name(value, keys)
        if keys[-1] == "download" and value:
            raise TrustError("a file that may be somebody else's downloads nothing", keys)
        if isinstance(value, int) and value > NUMBER and "seed" not in keys[-1]:
            raise TrustError(f"{value:,}: {_most(NUMBER)}", keys)


def extract_run_config(
    argv: Sequence[str], joins: bool = False
) -> tuple[list[str], UntrustedFile | None]:
    """Return a command's words without the configuration of a run folder, and that file.

    There is none with ``--trust``, or if the user names files of other places alone.
    """
    values = dict(flags(argv))
    if FLAG in values:
        return [*argv], None
    run, left, found = values.get("--ckpt_path"), list[str](), None
    for word in argv:
        name = word.removeprefix("--config=") if left[-1:] != ["--config"] else word
        file = Path(name)
        if (name != word or left[-1:] == ["--config"]) and _of_run(file, run) and not found:
            found = UntrustedFile(file, joins=joins)
            left = left[:-1] if left[-1:] == ["--config"] else left
            continue
        left.append(word)
    return left, found


def _of_run(file: Path, run: str | None) -> bool:
    """Return whether a file is the configuration in a run folder; ``run`` is one, or in one."""
    places = [] if run is None else [run_folder(Path(run)).resolve()]
    ran = (file.parent / "environment.json").exists() or file.parent.resolve() in places
    return file.name == "config.yaml" and ran


def _engine(engine: Any) -> str | None:  # noqa: ANN401
    """Return the name of the engine that stands for one in a file; ``None`` for a local one."""
    if isinstance(engine, Mapping):
        name = str(engine.get("class_path", "")).rpartition(".")[2]
        named = [word for word, one in OWN.items() if one.__name__ == name]
        return next((word for word in named if word in _LOCAL), "auto")
    return None if engine is None or engine in _LOCAL else "auto"


def _spelled(value: Any) -> Any:  # noqa: ANN401
    """Return plain values in which the names of known classes are their paths.

    Raises:
        TrustError: A key has a dot, which a parser takes for two keys.
    """
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if dotted := [key for key in value if "." in str(key)]:
        raise TrustError("a file that may be somebody else's has no dotted keys", (dotted[0],))
    spelled = {key: _spelled(item) for key, item in value.items()}
    if (made := catalogue.classes().get(str(spelled.get("class_path")))) is not None:
        spelled["class_path"] = f"{made.__module__}.{made.__name__}"
    return spelled


def _is_place(name: str, text: str) -> bool:
    """Return ``True`` for text that names a place, or a file that is there."""
    if name in _PLACES or _PLACE.match(text):
        return True
    return ("/" in text or "." in text) and Path(text).exists()


def _most(number: int) -> str:
    return f"a file that may be somebody else's has at most {number:,}; {FLAG} lifts this"


def _yaml(value: Any) -> str:  # noqa: ANN401
    return {None: "null", False: "false"}.get(value, str(value))
