"""The commands and their own arguments, known without importing them.

Those of the project stand in ``commands.yaml`` beside this file. An extra or a plug-in brings its
own: a package that is registered as an entry point of the group ``pfl.commands`` has such a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pfl.disk.form import formed
from pfl.disk.yaml_text import shipped
from pfl.imports.plugins import installed

_TYPES = {
    **{"text": str, "text or null": str | None, "path": Path},
    "bool or null": bool | None,
    **{"float": float, "float or null": float | None},
    **{"int": int, "int or null": int | None, "int or text": int | str, "lower": str.lower},
}
# Arguments of every command with a configuration that are not part of it.
_COMMON: Mapping[str, Mapping[str, Any]] = {
    "--download_weights": {
        "action": "store_true",
        "help": "let networks of torchvision download pretrained weights",
    }
}
CONFIG_HELP = (
    "a YAML file, or the name of a shipped configuration; later ones and flags override earlier "
    "ones"
)
SEED_HELP = "seed of all random choices"
# Keys of a command line with a configuration, besides the command's own arguments.
TOP_KEYS = ("config", "seed", "loop", "model", "data", "print_config")
# Defaults on the command line that differ from Python's: runs are stored.
LOOP_DEFAULTS = {"default_root_dir": "runs", "sampler": {"class_path": "UniformSampler"}}


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs, but leaves those with indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        blocks = text.split("\n\n")
        return "\n\n".join(one if "\n  " in one else filled(one, width, indent) for one in blocks)


@dataclass(frozen=True)
class Needs:
    """What a command takes from a configuration.

    Attributes:
        loop: The loop's options that it reads; ``None`` for all.
        model: Whether it needs a model.
        data: Whether it needs data.
        named: Whether the first word may be the name of the model.
        own: Whether its files are its own, and never the configuration of a run.
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
        function: The function that runs it, by its path within the package of the file.
        summary: Its line in the help of all commands.
        description: What it is for: the first lines of its help.
        examples: Uses of it, which its help shows next.
        epilog: Last lines of its help.
        usage: Its usage; ``None`` has argparse make it.
        configuration: What it takes from a configuration; ``None`` if it has none.
        passes_on: Whether all other flags are those of ``pfl fit``.
        arguments: Its own arguments, as argparse takes them.
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
        """Its arguments that are not part of a configuration, as ``add_argument`` takes them."""
        arguments = {
            name: {**how, **({"type": _TYPES[how["type"]]} if "type" in how else {})}
            for name, how in self.arguments.items()
        }
        return arguments if self.configuration is None else {**arguments, **_COMMON}

    def words(self, argv: Sequence[str]) -> Sequence[str]:
        """Return a command line with the flag of a model that is named by the first word."""
        named = self.configuration is not None and self.configuration.named
        bare = named and argv and not argv[0].startswith("-")
        return ["--model.class_path", *argv] if bare else argv


@cache
def commands() -> Mapping[str, Command]:
    """Return all commands, by name: the project's own, then those of extras and plug-ins."""
    found = _commands_of("pfl.cli", "pfl")
    for point in installed("pfl.commands"):
        brought = _commands_of(point.module, point.module)
        found |= {name: one for name, one in brought.items() if name not in found}
    return found


def _commands_of(package: str, home: str) -> dict[str, Command]:
    made: dict[str, Command] = formed(shipped(package, "commands.yaml"), dict[str, Command])
    return {name: replace(one, function=f"{home}.{one.function}") for name, one in made.items()}


def parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command's own arguments."""
    command = commands()[name]
    made = argparse.ArgumentParser(
        prog=f"pfl {name}",
        usage=command.usage,
        formatter_class=HelpFormatter,
        description="\n  ".join([f"{command.description}\n\nexamples:", *command.examples]),
        epilog=command.epilog,
        allow_abbrev=False,
    )
    for argument, how in command.typed_arguments.items():
        # Only jsonargparse takes a union of types.
        plain = {key: value for key, value in how.items() if key != "type" or callable(value)}
        made.add_argument(argument, **plain)
    return made


def parsed(name: str, argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command without a configuration.

    ``argv`` is the whole command line; ``flags`` are those that are passed on to ``pfl fit``.
    """
    made = parser(name)
    options, flags = made.parse_known_args(argv)
    if flags and not commands()[name].passes_on:
        made.error(f"unrecognized arguments: {' '.join(flags)}")
    return argparse.Namespace(**vars(options), argv=argv, flags=flags)
