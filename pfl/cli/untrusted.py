"""Configurations written by someone else, which may do less than the user's own.

There are two levels of trust. A file that the user wrote may name modules of the working folder,
paths and addresses. The configuration in a run folder may come from anyone: it may name only
classes of this project and of installed plug-ins, and no path that the user has not given; it
cannot start downloads, loggers or remote engines.
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
from pfl.cli.explain import Keys, UsageError, flags, run_folder, short_keys
from pfl.disk import reading
from pfl.engines import named
from pfl.imports import hints
from pfl.imports.trust import Trust, TrustError, check_calls, mapping_of

FLAG = "--trust"
# Engines that run in this process; all others connect to an address or start processes.
_LOCAL = ("auto", "sequential", "threads", "vectorised")
# Keys that are not taken from the file, and their replacements.
_INSTEAD: Mapping[str, Any] = {
    **{"loop.workers": None, "loop.loggers": None, "loop.kept_memory": None},
    **{"loop.default_root_dir": None, "data.cache_dir": None, "data.download": False},
}
# Those that the note omits, as they do not affect the run.
_SILENT = ("loop.workers", "loop.kept_memory", "loop.default_root_dir", "data.cache_dir")
_SECTIONS = ("seed", "loop", "model", "data")
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
        """Replacements for keys that are not taken from the file, by dotted key."""
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
        """One line about what is not taken from the file; empty if everything is."""
        said = [f"{k} becomes {_yaml(v)}" for k, v in self.instead.items() if k not in _SILENT]
        return f"{self.file} is not trusted: {', '.join(said)}" if said else ""

    def flags(self) -> Iterator[str]:
        """Yield flags with the replacements."""
        for key, value in self.instead.items():
            yield f"--{key.replace('data.', 'data.init_args.')}={_yaml(value)}"

    def check(self, types: Mapping[str, Any], trust: Trust) -> None:
        """Check the file before the parser reads it and imports its classes.

        Raises:
            TrustError: It names something that it may not.
        """
        for key in self.content:
            if key not in _SECTIONS:
                raise TrustError(f"expected only {', '.join(_SECTIONS)}", (str(key),))
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
        """Check the values that the parser has read from the file.

        Args:
            values: The values.
            given: Keys set by the user, which are not checked.
            trust: Names that are allowed.

        Raises:
            TrustError: A number is too large, or a metric is not allowed.
            PlaceError: There is a path or address that the user has not given.
        """
        if (rounds := values.loop.rounds) > ROUNDS and ("loop", "rounds") not in given:
            raise TrustError(f"{rounds:,} rounds: {_most(ROUNDS)}", ("loop", "rounds"))
        for section in ("loop", "model", "data"):
            for keys, value in self._leaves(values.get(section), (section,), None):
                if not any(keys[: len(path)] == path for path in given) and keys not in _WORDS:
                    self._check_leaf(keys, value, trust)

    def _leaves(self, value: Any, keys: Keys, usual: Any) -> Iterator[tuple[Keys, Any]]:  # noqa: ANN401
        """Yield the plain values within a value that differ from the defaults, with their keys."""
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
                f"{self.file}: {key} is {value}, but an untrusted file may not name "
                f"paths: give yours with {self.option}{key}=PATH, or trust the file with {FLAG}"
            )
        if isinstance(value, str) and keys[:2] == ("data", "metrics") and "." in value:
            trust.check_name(value, keys)
        if keys[-1] == "download" and value:
            raise TrustError("an untrusted file may not download anything", keys)
        if isinstance(value, int) and value > NUMBER and "seed" not in keys[-1]:
            raise TrustError(f"{value:,}: {_most(NUMBER)}", keys)


def extract_run_config(
    argv: Sequence[str], joins: bool = False
) -> tuple[list[str], UntrustedFile | None]:
    """Split a command line into words and the untrusted configuration of a run folder.

    There is no such file with ``--trust``, or if all files lie elsewhere.
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
    """Return ``True`` if a file is a run's configuration; ``run`` is a run folder or in one."""
    places = [] if run is None else [run_folder(Path(run)).resolve()]
    ran = (file.parent / "environment.json").exists() or file.parent.resolve() in places
    return file.name == "config.yaml" and ran


def _engine(engine: Any) -> str | None:  # noqa: ANN401
    """Return the name of the engine that replaces a file's; ``None`` if that is local."""
    if isinstance(engine, Mapping):
        word = named.name_of(str(engine.get("class_path", "")).rpartition(".")[2])
        return word if word in _LOCAL else "auto"
    return None if engine is None or engine in _LOCAL else "auto"


def _spelled(value: Any) -> Any:  # noqa: ANN401
    """Replace the names of known classes in plain values by their paths.

    Raises:
        TrustError: A key has a dot; the parser would split it.
    """
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if dotted := [key for key in value if "." in str(key)]:
        raise TrustError("an untrusted file may not have dotted keys", (dotted[0],))
    spelled = {key: _spelled(item) for key, item in value.items()}
    if (made := catalogue.classes().get(str(spelled.get("class_path")))) is not None:
        spelled["class_path"] = f"{made.__module__}.{made.__name__}"
    return spelled


def _is_place(name: str, text: str) -> bool:
    """Return ``True`` for a text that is a path or address, or an existing file."""
    if name in _PLACES or _PLACE.match(text):
        return True
    return ("/" in text or "." in text) and Path(text).exists()


def _most(number: int) -> str:
    return f"the limit for untrusted files is {number:,}; {FLAG} lifts it"


def _yaml(value: Any) -> str:  # noqa: ANN401
    return {None: "null", False: "false"}.get(value, str(value))
