"""Configurations written by someone else, which may do less than the user's own.

There are two levels of trust. A file that the user wrote may name modules of the working folder,
paths and addresses. The configuration in a run folder may come from anyone: it may name only
classes of this project and of installed plug-ins, and no path that the user has not given; it
cannot start downloads, loggers or remote engines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl.cli.commands import SECTIONS
from pfl.cli.explain import Keys, UsageError, UserSetting, UserSettings, flags, run_folder, without
from pfl.cli.kinds import Kind
from pfl.engines import named
from pfl.federation.identity import executing
from pfl.imports import signatures
from pfl.imports.trust import Trust, TrustError, check_described

FLAG = "--trust"
_ENGINE = "loop.engine"
# Engines that run in this process; all others connect to an address or start processes.
_LOCAL = ("auto", "sequential", "threads", "vectorised")
# Keys that are not taken from the file, and their replacements; and those that a note names.
_INSTEAD: Mapping[str, Any] = {"data.cache_dir": None, "data.download": False, "loop.loggers": None}
_SAID = ("loop.loggers", "data.download")
# Texts of the loop that are not paths.
_WORDS = (("loop", "name"), ("loop", "accelerator"), ("loop", "devices"))
# Arguments that are paths or addresses, whatever their value.
_PLACES = {
    *("root", "path", "source", "folder", "file", "save_dir", "cache_dir", "address", "kit"),
    *("weights", "checkpoint", "hierarchy", "superclasses", "root_certificates", "superlink"),
}
_PLACE = re.compile(r"[~/\\]|.*(:|\\|(^|/)\.\.(/|$))")
# The maximum of rounds, and of all other integers except seeds.
ROUNDS, NUMBER = 10_000, 1_000_000


class PlaceError(UsageError):
    """An untrusted file names a path or address that the user has not given."""


@dataclass(frozen=True)
class UntrustedFile:
    """A configuration file written by someone else.

    Attributes:
        file: The file.
        option: Prefix of the option with which the user gives a path.
        joins: Whether its data are replaced by those of clients that join.
    """

    file: Path
    option: str = "--"
    joins: bool = False

    def wrote(self, item: UserSetting) -> bool:
        """Return ``True`` for a setting of this file."""
        return item.place.startswith(f"{self.file}:")

    def judge(self, settings: UserSettings, trust: Trust) -> Judge:
        """Return what judges this file; see :class:`Judge`."""
        return Judge(self, settings, trust)

    def flags(self, settings: UserSettings) -> list[str]:
        """Return flags for what is not taken from the file, and print a line about them.

        Args:
            settings: The settings of the file.
        """
        given = {item.keys: item.value for item in settings}
        of_machine = (key for key, how in executing().items() if how.of_machine)
        values = {
            key: value
            for key, value in {**dict.fromkeys(of_machine), **_INSTEAD}.items()
            if given.get(tuple(key.split("."))) not in (value, None)
        }
        kind = given.get(("loop", "engine", "class_path"), given.get(("loop", "engine")))
        if (engine := _engine(kind)) is not None:
            values[_ENGINE] = engine
        said = [f"{k} becomes {_yaml(v)}" for k, v in values.items() if k in (*_SAID, _ENGINE)]
        if said:
            print(f"pfl: {self.file} is not trusted: {', '.join(said)}", file=sys.stderr)
        keys = {key: key.replace("data.", "data.init_args.") for key in values}
        return [f"--{keys[key]}={_yaml(value)}" for key, value in values.items()]


class Judge:
    """Refuses what a file of someone else may not say.

    Args:
        file: The file.
        settings: All settings; those that the user gives are not judged.
        trust: What the file may name.
    """

    def __init__(self, file: UntrustedFile, settings: UserSettings, trust: Trust) -> None:
        self._file = file
        self._trust = trust
        self._users = {item.keys for item in settings if not file.wrote(item)}

    def check_key(self, item: UserSetting) -> None:
        """Refuse a key that is none of a configuration's.

        Raises:
            TrustError: It is not.
        """
        if self._file.wrote(item) and item.keys[0] not in SECTIONS:
            raise TrustError(f"expected only {', '.join(SECTIONS)}", item.keys[:1])
        if self._file.wrote(item) and item.dotted:
            raise TrustError("an untrusted file may not have dotted keys", item.keys)

    def check_text(self, item: UserSetting) -> None:
        """Refuse text in the place of an object that a parser reads as something else.

        Raises:
            TrustError: It is such a text.
        """
        if self._file.wrote(item):
            check_described(str(item.value), item.keys)

    def check_value(self, item: UserSetting, value: Any, kind: Kind | None) -> None:
        """Refuse a plain value that the user has not given.

        Args:
            item: The setting.
            value: Its value, as the parser reads it.
            kind: The class of which it is an argument, if any.

        Raises:
            TrustError: A number is too large, a metric is not allowed, or data are downloaded.
            PlaceError: It is a path or an address.
        """
        usual = kind.usual.get(item.keys[-1]) if kind is not None else None
        if value == usual or item.keys in _WORDS or self._is_users(item, kind):
            return
        if item.keys[-1] == "download" and value:
            raise TrustError("an untrusted file may not download anything", item.keys)
        if kind is not None:
            self._trust.check_weights(kind.made, {item.keys[-1]: value}, item.keys[:-1])
        if isinstance(value, str):
            self._check_word(item.keys, value)
        elif isinstance(value, int):
            _check_amount(item.keys, value)

    def _is_users(self, item: UserSetting, kind: Kind | None) -> bool:
        """Return ``True`` for a value that the user gives, or that joining clients replace."""
        users = any(item.keys[: len(path)] == path for path in self._users)
        if users or not self._file.wrote(item):
            return True
        if kind is None or not self._file.joins or item.keys[:-1] != ("data",):
            return False
        source: str | None = signatures.constant(kind.made, "source_argument")
        return item.keys[-1] == source

    def _check_word(self, keys: Keys, value: str) -> None:
        """Refuse a path, an address, or a metric that may not be named."""
        if _is_place(keys[-1], value):
            key = ".".join(keys)
            raise PlaceError(
                f"{self._file.file}: {key} is {value}, but an untrusted file may not name paths: "
                f"give yours with {self._file.option}{key}=PATH, or trust the file with {FLAG}"
            )
        if keys[:2] == ("data", "metrics") and "." in value:
            self._trust.check_name(value, keys)


def extract_run_config(
    argv: Sequence[str], joins: bool = False
) -> tuple[list[str], UntrustedFile | None]:
    """Split a command line into words and the untrusted configuration of a run folder.

    There is no such file with ``--trust``, or if none is a run's.
    """
    values = dict(flags(argv))
    if FLAG in values:
        return [*argv], None
    run = values.get("--ckpt_path")
    files = [Path(name) for flag, name in flags(argv) if flag == "--config" and name]
    found = next((file for file in files if _of_run(file, run)), None)
    if found is None:
        return [*argv], None
    others = [f"--config={file}" for file in files if file != found]
    left = without(argv, lambda flag: flag == "--config")
    return [*others, *left], UntrustedFile(found, joins=joins)


def _of_run(file: Path, run: str | None) -> bool:
    """Return ``True`` if a file is a run's configuration; ``run`` is a run folder or in one."""
    places = [] if run is None else [run_folder(Path(run)).resolve()]
    ran = (file.parent / "environment.json").exists() or file.parent.resolve() in places
    return file.name == "config.yaml" and ran


def _engine(engine: Any) -> str | None:
    """Return the name of the engine that replaces a file's; ``None`` if that is local."""
    if isinstance(engine, str) and engine not in _LOCAL:
        word = named.name_of(engine.rpartition(".")[2])
        return word if word in _LOCAL else "auto"
    return None if isinstance(engine, str) or engine is None else "auto"


def _is_place(name: str, text: str) -> bool:
    """Return ``True`` for a text that is a path or address, or an existing file."""
    if name in _PLACES or _PLACE.match(text):
        return True
    return ("/" in text or "." in text) and Path(text).exists()


def _check_amount(keys: Keys, value: int) -> None:
    """Refuse a number with which a run would not end."""
    if keys == ("loop", "rounds") and value > ROUNDS:
        raise TrustError(f"{value:,} rounds: {_most(ROUNDS)}", keys)
    if value > NUMBER and "seed" not in keys[-1]:
        raise TrustError(f"{value:,}: {_most(NUMBER)}", keys)


def _most(number: int) -> str:
    return f"the limit for untrusted files is {number:,}; {FLAG} lifts it"


def _yaml(value: Any) -> str:
    return {None: "null", False: "false"}.get(value, str(value))
