"""A command line with its configuration files, read and checked once, for all that follows.

Files are opened, names resolved and trust decided here, as far as sources tell; the rest follows
once the classes are imported (:meth:`Reading.settle`). What is handed on has the paths of classes
in the place of their names, so that the parser looks for none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl.cli import shipped
from pfl.cli.commands import SECTIONS, Command, Needs, commands
from pfl.cli.explain import (
    Keys,
    UsageError,
    UserSetting,
    keys_of,
    placed,
    run_folder,
    sources,
    without,
)
from pfl.cli.kinds import Lookup
from pfl.cli.sourced import Sources
from pfl.cli.walk import Walk
from pfl.disk.yaml_text import dumped
from pfl.federation import folders, identity
from pfl.imports import plugins, signatures, stubs
from pfl.imports.trust import Trust, TrustError, is_path

if TYPE_CHECKING:
    from pfl.cli.untrusted import UntrustedFile

_YAML = (".yaml", ".yml")
# Keys that files may not have, since the parser would take them for its flags, and the remedy.
_FLAGS_ALONE = {
    "config": "give further files with --config",
    "print_config": "give the flag --print_config",
    "download_weights": "a file cannot allow downloads: give the flag --download_weights",
}


@dataclass
class Reading:
    """A command line as it was read.

    Attributes:
        verb: The command.
        settings: The settings, later ones last.
        trust: What they may name.
        untrusted: The configuration file of someone else among them.
        change: What a room makes of a command on a run by its flags, a
            :class:`~pfl.cli.trained.Change`; ``None`` if there is none.
    """

    verb: str
    settings: list[UserSetting]
    trust: Trust
    untrusted: UntrustedFile | None
    change: Any
    _words: Sequence[str] = field(repr=False)
    _walk: Walk | None = field(default=None, repr=False)

    @property
    def command(self) -> Command:
        """The command's description."""
        return commands()[self.verb]

    def check(self) -> None:
        """Check files, names and values by the sources of classes.

        Raises:
            UsageError: A file or a required flag is missing, or a name or a value is wrong.
        """
        for item in self.settings:
            for what in chain(_misplaced(item), _nameless(item), self._ignored(item)):
                raise item.error(what)
        self._walk = self._walked(Sources(self.settings, self.trust))
        for path in filter(None, self._checkpoints()):
            if path not in ("last", "null") and not Path(path).exists():
                raise UsageError(f"there is no checkpoint at {path}")
        self._check_needed()

    def _checkpoints(self) -> list[str | None]:
        """Return the checkpoints that are named, of which the last one counts."""
        return [item.text for item in self.settings if item.keys == ("ckpt_path",)]

    def _walked(self, lookup: Lookup) -> Walk:
        theirs = self.untrusted
        judge = None if theirs is None else theirs.judge(self.settings, self.trust)
        walk = Walk(self.settings, self.command, lookup, self.trust, judge)
        try:
            walk.check()
        except TrustError as error:
            raise UsageError(placed(error.what, error.keys, self.settings)) from error
        return walk

    def check_objects(self) -> None:
        """Check what the objects would refuse when they are made, as far as sources tell.

        Raises:
            UsageError: An object would refuse its arguments, or there are no data to read.
        """
        shown = self.asks_help or any(item.keys[0] == "print_config" for item in self.settings)
        needs = self.command.configuration or Needs()
        if self._walk is not None and not shown:
            self._walk.check_objects(needs.data and self.change is None)
            if self._checkpoints()[-1:] not in ([], ["null"]) and self.change is None:
                self._check_runs(str(self._checkpoints()[-1]), self._walk)

    def _check_runs(self, path: str, walk: Walk) -> None:
        """Check that a run that is named, or some run, has the settings, as far as sources tell."""
        new, _ = folders.apart(identity.of_run(walk.completed()))
        trains = self.verb == "fit"

        def differences(config: str | None, seed: int | None) -> list[str]:
            if walk.is_open or config is None or config.startswith(identity.STARTED):
                return []
            old, _ = folders.of_config(config, "of the checkpoint")
            told = {key: value for key, value in old.items() if key in new}
            return [*folders.changes(told, new, trains)]

        folder, root = run_folder(Path(path)), walk.root()
        if path != "last":
            if differing := differences(*folders.recorded(folder)):
                raise UsageError(folders.refusal(folder / folders.FILE, differing, trains))
        elif root is not None:
            try:
                folders.fitting(root, differences)
            except LookupError as error:
                raise UsageError(str(error)) from error

    def settle(self) -> list[str]:
        """Check what only an import tells, and return the words for the parser.

        These are one file with the whole configuration, and the command's own arguments.

        Raises:
            UsageError: A name or a value is wrong.
        """
        # Imported here, as it needs torch.
        from pfl.cli.imported import Imported

        if self._walk is None or self._walk.is_open:
            self._import_own()
            self._walk = self._walked(Imported(self.trust))
        # A file may have the command's own arguments, which flags override.
        in_files, flags = (
            {item.keys[0] for item in self.settings if item.is_flag is flag}
            for flag in (False, True)
        )
        kept = {*SECTIONS, *(in_files - flags)}
        content = {k: v for k, v in self._walk.merged.content.items() if k in kept}

        def is_merged(flag: str) -> bool:
            keys = keys_of(flag)
            return keys[0] in (*SECTIONS, "config") and "help" not in keys

        return [f"--config={dumped(content)}", *without(self._words, is_merged)]

    def _import_own(self) -> None:
        """Import modules of the working folder that the user's own texts name."""
        from pfl.cli import catalogue

        theirs = self.untrusted
        for item in self.settings:
            if item.text and is_path(item.text) and not (theirs and theirs.wrote(item)):
                catalogue.import_from_working_folder(item.text)

    def _ignored(self, item: UserSetting) -> Iterator[str]:
        """Complain about an option of the loop that the command does not read."""
        takes = self.command.configuration or Needs()
        section, *names = item.keys or ("",)
        known = names[:1] if takes.loop is None else takes.loop
        unread = section == "loop" and not {*names[:1]} <= {*known}
        # A run's own file may contain options that the command ignores.
        if unread and (takes.own or item.is_flag):
            yield f"pfl {self.verb} ignores this option"

    @property
    def asks_help(self) -> bool:
        """Whether the help of the command or of a class is asked for."""
        return any("help" in (item.keys[0], item.keys[-1]) for item in self.settings)

    def _check_needed(self) -> None:
        """Reject a command line that lacks a required argument; its first word may be a typo."""
        if self.asks_help or any(item.keys[0] == "print_config" for item in self.settings):
            return
        takes, present = self.command.configuration or Needs(), {i.keys[0] for i in self.settings}
        flags = self.command.typed_arguments.items()
        needed = [name.lstrip("-") for name, how in flags if how.get("required")]
        needed += ["data"] * takes.data + ["model"] * takes.model
        if missing := [name for name in needed if name not in present]:
            advice = "".join(self._advice()) if {*missing} & {"model", "data"} else ""
            raise UsageError(f"the following arguments are required: {', '.join(missing)}{advice}")

    def _advice(self) -> Iterator[str]:
        """Yield which configurations may have been meant: that of the run, or the first word."""
        for item in self.settings:
            if item.keys == ("ckpt_path",) and item.text:
                path = Path(item.text)
                file = (path if path.is_dir() else path.parent.parent) / "config.yaml"
                if file.is_file():
                    yield f"; add --config {file}"
        for word in self._words[:1]:
            if word.endswith(_YAML) or word in shipped.names():
                yield f"; add --config {word}"


def read(
    verb: str,
    argv: Sequence[str],
    untrusted: UntrustedFile | None = None,
    usual: Sequence[str] = (),
) -> Reading:
    """Read and check a command line, without an import of torch.

    Args:
        verb: The command.
        argv: The command line.
        untrusted: A configuration file of someone else, which the command line overrides.
        usual: Flags that the files and flags of the command line override.

    Raises:
        UsageError: The command line or a configuration file is wrong.
    """
    command = commands()[verb]
    argv, change = _changed(verb, argv)
    if "--trust" in command.typed_arguments:
        from pfl.cli.untrusted import extract_run_config  # few commands read a file of others

        argv, untrusted = extract_run_config(argv, joins=change is not None)
    words = [*_of_sweep(verb), *usual, *shipped.with_config_files(command.words(argv))]
    theirs = [] if untrusted is None else ["--config", str(untrusted.file)]
    settings = sources(theirs)
    if untrusted is not None:
        words = [*untrusted.flags(settings), *words]
    settings += sources(words)
    # Not allowed in a file; see above.
    weights = any(item.keys == ("download_weights",) for item in settings)
    trust = Trust(None if untrusted is None else (), weights, command=True)
    reading = Reading(verb, settings, trust, untrusted, change, words)
    reading.check()
    return reading


def _misplaced(item: UserSetting) -> Iterator[str]:
    """Complain about what only a flag, or only a file, may be."""
    if item.place == "--config":
        yield "expected a YAML file or the name of a shipped configuration"
    section = next(iter(item.keys), "")
    if section in _FLAGS_ALONE and not item.is_flag:
        yield _FLAGS_ALONE[section]


def _nameless(item: UserSetting) -> Iterator[str]:
    """Complain about a section that lacks the name of its class."""
    if item.keys == ("data",) and (reader := _reader(item.text or "")):
        yield f"name the class that reads it: {reader} {item.text}"
    listed: Mapping[Keys, str] = {("model", "help"): "methods", ("data", "help"): "data"}
    if item.keys in listed and not item.text:
        yield f"name a class; 'pfl list {listed[item.keys]}' shows them"


def _reader(file: str) -> str:
    """Return the flags for a file that is given where the class that reads it is expected.

    Empty for a word that is no such file.
    """
    for plugin in plugins.installed("pfl.readers"):
        if file.endswith(f".{plugin.name}"):
            taken = signatures.parameters(stubs.stub(plugin.path) or object)
            return f"--data {plugin.attr} --data.{next(iter(taken or ['path']))}"
    return ""


def _changed(verb: str, argv: Sequence[str]) -> tuple[list[str], Any]:
    """Return a command line without the flags of the room that takes them, and what it does.

    Rooms and plug-ins do so by a function of both in the group ``pfl.changes`` of entry points.

    Raises:
        UsageError: The flags are wrong.
    """
    words = [*argv]
    for plugin, take in plugins.loaded("pfl.changes"):
        with plugin.noted():
            left, change = take(verb, [*words])
            if change is not None:
                return left, change
            words = left
    return words, None


def _of_sweep(verb: str) -> list[str]:
    """Return the folder that the runs of a sweep share, whose agent of W&B sets its name."""
    sweep = os.environ.get("WANDB_SWEEP_ID") if verb == "fit" else None
    return [f"--loop.default_root_dir={Path('runs', 'sweeps', sweep)}"] if sweep else []
