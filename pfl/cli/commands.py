"""The commands and their arguments, read without importing their code.

The project's commands are defined in ``commands.yaml`` beside this file. Extras and plug-ins add
more: a package registered under the entry point group ``pfl.commands`` contains such a file, and
one under ``pfl.arguments`` has ``arguments.yaml``, with arguments of the others' commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from pfl.disk.form import formed
from pfl.disk.nearest import hint
from pfl.disk.yaml_text import ambiguous, shipped
from pfl.imports.plugins import installed

_TYPES = {
    **{"text": str, "text or null": str | None, "path": Path},
    "bool or null": bool | None,
    **{"float": float, "float or null": float | None},
    **{"int": int, "int or null": int | None, "int or text": int | str, "lower": str.lower},
}
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
# Top-level keys of every configuration.
TOP_KEYS = ("config", "seed", "loop", "model", "data", "print_config")
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


@cache
def commands() -> Mapping[str, Command]:
    """Return all commands, by name: the project's own, then those of extras and plug-ins."""
    found = _commands_of("pfl.cli", "pfl")
    for point in installed("pfl.commands"):
        brought = _commands_of(point.module, point.module)
        found |= {name: one for name, one in brought.items() if name not in found}
    for point in installed("pfl.arguments"):
        for name, more in formed(shipped(point.module, "arguments.yaml"), _ADDED).items():
            if name in found:
                found[name] = replace(found[name], arguments={**more, **found[name].arguments})
    return found


def _commands_of(package: str, home: str) -> dict[str, Command]:
    made: dict[str, Command] = formed(shipped(package, "commands.yaml"), dict[str, Command])
    return {name: replace(one, function=f"{home}.{one.function}") for name, one in made.items()}


def parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command's own arguments."""
    command = commands()[name]
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
        plain = {key: value for key, value in how.items() if key != "type" or callable(value)}
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
