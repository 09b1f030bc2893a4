"""The commands and their arguments, read without importing their code.

The project's commands are defined in ``commands.yaml`` beside this file. Extras and plug-ins add
more: a package registered under the entry point group ``pfl.commands`` contains such a file, and
one under ``pfl.arguments`` has ``arguments.yaml``, with arguments of the others' commands.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import isroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pfl.core.words import Ending
from pfl.disk.form import formed
from pfl.disk.nearest import hint
from pfl.disk.yaml_text import ambiguous, shipped
from pfl.imports import plugins, signatures, stubs
from pfl.imports.plugins import Plugin

_TYPES = {
    **{"text": str, "text or null": str | None, "path": Path},
    "bool or null": bool | None,
    "png or null": Annotated[str | None, Ending(".png")],
    **{"float": float, "float or null": float | None},
    **{"int": int, "int or null": int | None, "int or text": int | str, "lower": str.lower},
}
_NAME = re.compile(r"[a-z][a-z0-9_-]*(?: [a-z][a-z0-9_-]*)?")
# Arguments of each command, by its name.
_ADDED = dict[str, dict[str, dict[str, Any]]]
# Arguments of every command with a configuration, besides the configuration itself.
_COMMON: Mapping[str, Mapping[str, Any]] = {
    "--download_weights": {
        "action": "store_true",
        "help": "let networks of torchvision download pretrained weights",
    }
}
CONFIG_HELP = (
    "a YAML file or the name of a shipped configuration; later files and flags override earlier "
    "ones"
)
SEED_HELP = "seed of all random choices"
# The keys of a configuration.
SECTIONS = ("seed", "loop", "model", "data")
SEED = 42
# Defaults that differ from Python's: on the command line, runs are stored.
LOOP_DEFAULTS = {"default_root_dir": "runs", "sampler": {"class_path": "UniformSampler"}}


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs, except those with indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        blocks = text.split("\n\n")
        return "\n\n".join(one if "\n  " in one else filled(one, width, indent) for one in blocks)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, which name the nearest word."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        if action.choices is not None and value not in action.choices:
            what = f"there is no {value!r}{hint(str(value), map(str, action.choices))}"
            raise argparse.ArgumentError(action, what)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _as_in_files(kind: type) -> Callable[[str], Any]:
    """Return a reader of numbers that refuses what files refuse, such as 010."""

    def read(text: str) -> Any:  # noqa: ANN401
        if what := ambiguous(text):
            raise argparse.ArgumentTypeError(what)
        return kind(text)

    read.__name__ = kind.__name__
    return read


@dataclass(frozen=True)
class Needs:
    """The parts of a configuration that a command needs.

    Attributes:
        loop: Options of the loop that the command reads; ``None`` for all.
        model: Whether the command needs a model.
        data: Whether the command needs data.
        named: Whether the first word may name the model.
        own: Whether its files have a format of their own and are never a run's configuration.
    """

    loop: list[str] | None = None
    model: bool = True
    data: bool = True
    named: bool = False
    own: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command.

    Attributes:
        function: Path of the function that runs it, within the package of the file.
        summary: Line in ``pfl --help``.
        description: First paragraph of its help.
        examples: Examples, shown next in its help.
        epilog: Last paragraph of its help.
        usage: Usage line; ``None`` for argparse's.
        configuration: What it needs from a configuration; ``None`` if it takes none.
        passes_on: Whether all other flags are passed on to ``pfl fit``.
        arguments: Its arguments, as for ``add_argument``.
    """

    function: str
    summary: str
    description: str
    examples: list[str]
    epilog: str | None = None
    usage: str | None = None
    configuration: Needs | None = None
    passes_on: bool = False
    arguments: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def typed_arguments(self) -> Mapping[str, Mapping[str, Any]]:
        """Its arguments besides the configuration, as for ``add_argument``."""
        arguments = {
            name: {**how, **({"type": _TYPES[how["type"]]} if "type" in how else {})}
            for name, how in self.arguments.items()
        }
        return arguments if self.configuration is None else {**arguments, **_COMMON}

    def words(self, argv: Sequence[str]) -> Sequence[str]:
        """Return a command line in which a model named by the first word has its flag."""
        named = self.configuration is not None and self.configuration.named
        bare = named and argv and not argv[0].startswith("-")
        return ["--model.class_path", *argv] if bare else argv


def commands() -> Mapping[str, Command]:
    """Return all commands, by name: the project's own, then those of extras and plug-ins."""
    return _installed()[0]


def plugin_of(name: str) -> Plugin | None:
    """Return the plug-in of another package that brings a command; ``None`` for all others."""
    plugin = _installed()[1].get(name)
    return None if plugin is None or plugin.is_own else plugin


@cache
def _installed() -> tuple[Mapping[str, Command], Mapping[str, Plugin]]:
    """Return all commands, and the plug-ins that bring some of them, by name."""
    found = _commands_of("pfl.cli", "pfl")
    brought: list[tuple[str, Plugin, tuple[Command, Plugin]]] = []
    for plugin, _ in plugins.loaded("pfl.commands"):
        with plugin.noted():
            made = _commands_of(plugin.module, plugin.module)
            if not plugin.is_own:
                _try(plugin, made)
            brought += ((name, plugin, (one, plugin)) for name, one in made.items())
    own = {name: one.function for name, one in found.items()}
    settled = plugins.settle("command", brought, own, _hide)
    found |= {name: one for name, (one, _) in settled.items()}
    for plugin, _ in plugins.loaded("pfl.arguments"):
        with plugin.noted():
            added = formed(shipped(plugin.module, "arguments.yaml"), _ADDED)
            more = {
                name: replace(found[name], arguments={**arguments, **found[name].arguments})
                for name, arguments in added.items()
                if name in found
            }
            for name in more:
                twice = {*added[name]} & {*found[name].typed_arguments}
                what = f"a source of new arguments: pfl {name} has {', '.join(twice)} already"
                plugin.check(not twice, what)
            if not plugin.is_own:
                unknown = ", ".join({*added} - {*found})
                plugin.check(not unknown, f"a source of arguments of commands: {unknown}")
                _try(plugin, more)
            found |= more
    return found, {name: plugin for name, (_, plugin) in settled.items()}


def _commands_of(package: str, home: str) -> dict[str, Command]:
    made: dict[str, Command] = formed(shipped(package, "commands.yaml"), dict[str, Command])
    return {name: replace(one, function=f"{home}.{one.function}") for name, one in made.items()}


def _try(plugin: Plugin, made: Mapping[str, Command]) -> None:
    """Refuse commands of another package whose help cannot be shown."""
    options = {*(signatures.parameters(stubs.resolved("pfl.loop.FederatedLoop")) or ())}
    for name, command in made.items():
        plugin.check(bool(_NAME.fullmatch(name)), f"a command of one or two words: {name!r}")
        read = (command.configuration or Needs()).loop or ()
        what = f"a command that reads only options of the loop: {name!r}"
        plugin.check(options.issuperset(read), what)
        _parser(name, command).format_help()


def _hide(one: str, other: str) -> bool:
    """Return ``True`` if the words of one command may be meant for another."""
    return f"{one} ".startswith(f"{other} ") or f"{other} ".startswith(f"{one} ")


def parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command's own arguments."""
    return _parser(name, commands()[name])


def _parser(name: str, command: Command) -> argparse.ArgumentParser:
    made = _Parser(
        prog=f"pfl {name}",
        usage=command.usage,
        formatter_class=HelpFormatter,
        description="\n  ".join([f"{command.description}\n\nexamples:", *command.examples]),
        epilog=command.epilog,
        allow_abbrev=False,
    )
    for argument, how in command.typed_arguments.items():
        # Only jsonargparse accepts unions of types.
        made_by = how.get("type")
        simple = isinstance(made_by, type) or isroutine(made_by)
        plain = {key: value for key, value in how.items() if key != "type" or simple}
        if plain.get("type") in (int, float):
            plain["type"] = _as_in_files(plain["type"])
        made.add_argument(argument, **plain)
    return made


def parsed(name: str, argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command without a configuration.

    ``argv`` is the whole command line; ``flags`` in the result are passed on to ``pfl fit``.
    """
    made = parser(name)
    options, flags = made.parse_known_args(argv)
    if flags and not commands()[name].passes_on:
        made.error(f"unrecognized arguments: {' '.join(flags)}")
    return argparse.Namespace(**vars(options), argv=argv, flags=flags)
