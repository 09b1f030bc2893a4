"""Checks of a command line before torch is imported: files, names and required arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pfl.cli import shipped
from pfl.cli.changes import changed
from pfl.cli.commands import Command, Needs, commands
from pfl.cli.explain import UsageError, UserSettings, sources
from pfl.cli.walk import Sources, Walk

# Files that users give where the class that reads them is expected.
_TABLES = (".csv", ".arff", ".parquet")
_YAML = (".yaml", ".yml")


def check(verb: str, argv: Sequence[str]) -> None:
    """Check the files, methods, data and keys of a command line.

    Raises:
        UsageError: A file or a required flag is missing, or a name or a value is misspelt.
    """
    command = commands()[verb]
    argv, _ = changed(verb, argv)
    settings = sources(shipped.with_config_files(command.words(argv)))
    _check_read(verb, settings)
    for item in settings:
        if item.place == "--config":
            raise item.error("expected a YAML file or the name of a shipped configuration")
        if item.keys == ("data",) and (item.text or "").endswith(_TABLES):
            what = f"name the class that reads it: --data TabularData --data.path {item.text}"
            raise item.error(what)
        if item.keys in (("model", "help"), ("data", "help")) and not item.text:
            listed = {"model": "methods"}.get(item.keys[0], "data")
            what = f"name a class; 'pfl list {listed}' shows them"
            raise item.error(what)
    Walk(settings, command, Sources(settings)).check()
    for path in [item.text for item in settings if item.keys == ("ckpt_path",) and item.text]:
        if path not in ("last", "null") and not Path(path).exists():
            raise UsageError(f"there is no checkpoint at {path}")
    _check_needed(command, settings, argv[:1])


def _check_read(name: str, settings: UserSettings) -> None:
    """Reject options of the loop that a command ignores.

    A run's own file may contain them.
    """
    takes = commands()[name].configuration or Needs()
    for item in settings:
        section, *keys = item.keys
        unread = takes.loop is not None and section == "loop" and keys and keys[0] not in takes.loop
        if unread and (takes.own or item.place.startswith("--")):
            raise item.error(f"pfl {name} ignores this option")


def _check_needed(verb: Command, settings: UserSettings, first: Sequence[str]) -> None:
    """Reject a command line that lacks a required argument; its first word may be a typo."""
    shown = ("help", "print_config")
    if any(item.keys[0] in shown or item.keys[-1] == "help" for item in settings):
        return
    takes, present = verb.configuration or Needs(), {item.keys[0] for item in settings}
    needed = [n.lstrip("-") for n, how in verb.typed_arguments.items() if how.get("required")]
    needed += ["data"] * takes.data + ["model"] * takes.model
    if missing := [name for name in needed if name not in present]:
        advice = _advice(settings, first) if {*missing} & {"model", "data"} else ""
        raise UsageError(f"the following arguments are required: {', '.join(missing)}{advice}")


def _advice(settings: UserSettings, first: Sequence[str]) -> str:
    """Return which configurations may have been meant."""
    named = (word for word in first if word.endswith(_YAML) or word in shipped.names())
    return "".join(f"; add --config {file}" for file in [*_configurations(settings), *named])


def _configurations(settings: UserSettings) -> Iterator[Path]:
    """Yield the configuration of the run that a checkpoint path names."""
    for item in settings:
        if item.keys == ("ckpt_path",) and item.text:
            path = Path(item.text)
            file = (path if path.is_dir() else path.parent.parent) / "config.yaml"
            if file.is_file():
                yield file
