"""The parser of command lines and YAML files: jsonargparse's, as in LightningCLI.

It differs in two points: networks' arguments that the data determine are optional, and a class name
    of this project is never resolved to another library's class.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from argparse import Action
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from textwrap import fill
from typing import Any

import yaml
from jsonargparse import (
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
    set_dumper,
    set_loader,
    set_parsing_settings,
)
from torch import nn

from pfl.cli import catalogue
from pfl.cli.catalogue import KINDS
from pfl.cli.commands import CONFIG_HELP, LOOP_DEFAULTS, SEED, SEED_HELP, Command, Needs, commands
from pfl.cli.kinds import FROM_DATA
from pfl.core.client import ClientModule
from pfl.disk.yaml_text import YamlError, dumped, loaded
from pfl.imports.hints import bare, declared, inherited
from pfl.imports.plugins import PACKAGES
from pfl.imports.trust import BUILTINS
from pfl.loop import FederatedLoop

# Packages whose classes are listed in the help without their path.
_SHORT = (*PACKAGES, "torch.optim.")
# Name in jsonargparse of the YAML reader set by make_parser.
MODE = "pfl"
# What jsonargparse writes of an object without an import path, and of a word whose type is one of
# words or functions, such as ``Callable | str``.
_UNSAID = "Unable to serialize instance "


class Formatter(DefaultHelpFormatter):
    """A help formatter of plain text.

    Only the project's classes are listed, if there are any of a kind.
    """

    def _expand_help(self, action: Action) -> str:
        text = catalogue.unmarked(super()._expand_help(action))
        # The choices of an option already stand beside its name.
        text = re.sub(r"type: Literal\[.*?\], |<class '(\w+)'>", r"\1", text)
        return re.sub(r"known subclasses: ([\w., ]+)", self._own, text)

    def start_section(self, heading: str | None) -> None:
        """Start a section and wrap its heading, the first sentence of a class."""
        super().start_section(heading and fill(catalogue.unmarked(heading), self._width))

    @staticmethod
    def _own(listed: re.Match[str]) -> str:
        names = listed[1].split(", ")
        short = [name.rpartition(".")[2] for name in names if name.startswith(_SHORT)]
        if "torch.nn.Module" in names:
            short = [net.name for net in catalogue.listed("nets")]
        elif "torch.optim.Optimizer" in names:
            short = sorted({*short} - {"Optimizer"})
        return f"known: {', '.join(short or names)}"


class Parser(ArgumentParser):
    """A parser that does not require the arguments in :data:`FROM_DATA`.

    jsonargparse uses parsers of the same class for nested classes and for their help, so this
    applies to networks at any depth.

    The help of a class is made by such a parser as well.

    Args:
        verb: The command whose command lines it reads, if it is not the parser of a class.
        args: Passed on to jsonargparse.
        options: Passed on to jsonargparse.
    """

    command = "fit"  # a command that accepts a class's arguments

    def __init__(self, *args: Any, verb: Command | None = None, **options: Any) -> None:
        if wanted := re.fullmatch(r"Help for (\S+)\.help=(\S+)", options.get("description") or ""):
            flag, name = wanted[1], wanted[2].rpartition(".")[2]
            usage = f"pfl {self.command} {flag} {name} [{flag}.ARGUMENT VALUE ...]"
            options |= {"description": None, "usage": usage}
        super().__init__(*args, formatter_class=Formatter, **options)
        # Parsers of nested classes are made by jsonargparse, and read no command line.
        self.verb = verb or commands()[self.command]

    def add_class_arguments(
        self, class_type: type, nested_key: str | None = None, *args: Any, **options: Any
    ) -> list[str]:
        """Add a class's arguments; those that are filled in later are optional.

        An argument without a type has that of the base's argument of the same name.
        """
        parameters = inspect.signature(class_type).parameters
        given: dict[str, dict[str, Any]] = {}
        # A number is how many the caller of a factory gives.
        skipped = sum(one for one in options.get("skip") or () if isinstance(one, int))
        of_bases = {
            n: inherited(class_type)[n]
            for n in [*parameters][skipped:]
            if n in inherited(class_type)
        }
        for name, hint in of_bases.items():
            default = parameters[name].default
            required = default is inspect.Parameter.empty
            given[name] = {
                "type": hint,
                **({"required": True} if required else {"default": default}),
            }
        for name, (hint, text) in self.filled(class_type).items():
            given[name] = {"type": hint | None, "default": None, "help": text}
        options["skip"] = {*(options.get("skip") or ()), *given}
        added: list[str] = super().add_class_arguments(class_type, nested_key, *args, **options)
        for name, how in given.items():
            key = f"{nested_key}.{name}" if nested_key else name
            self.add_argument(f"--{key}", **how)
            added.append(key)
        return added

    def filled(self, target: Any) -> Mapping[str, tuple[Any, str]]:  # noqa: ANN401
        """Return type and help of a class's arguments that are filled in later, by name."""
        return {name: (FROM_DATA[name].hint, "(default: the data's)") for name in from_data(target)}

    def dump(self, namespace: Namespace, *args: Any, **options: Any) -> str:
        """Return the configuration as YAML, without the command's arguments."""
        lasting = namespace.clone()
        for name in self.verb.typed_arguments:
            lasting.pop(name.removeprefix("--"), None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", rf"\s*{_UNSAID}")
            text: str = super().dump(lasting, *args, **options).replace(*BUILTINS)
        return dumped(_said(loaded(text), {*_words(lasting)})) if _UNSAID in text else text


def _words(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the texts in a part of a configuration."""
    if isinstance(value, str):
        yield value
    inner = vars(value) if isinstance(value, Namespace) else value
    for one in inner.values() if isinstance(inner, Mapping) else ():
        yield from _words(one)
    for one in inner if isinstance(inner, list | tuple) else ():
        yield from _words(one)


def _said(value: Any, words: Collection[str]) -> Any:  # noqa: ANN401
    """Return plain values with the words that jsonargparse took for objects without a path.

    Real ones are left out: nobody can have named them, so that they are defaults.
    """
    if isinstance(value, str):
        word = value.removeprefix(_UNSAID)
        return word if word in words else value
    if isinstance(value, list):
        return [_said(one, words) for one in value]
    if not isinstance(value, dict):
        return value
    said = {key: _said(one, words) for key, one in value.items()}
    return {
        key: one
        for key, one in said.items()
        if not (isinstance(one, str) and one.startswith(_UNSAID))
    }


def from_data(target: Any) -> list[str]:  # noqa: ANN401
    """Return the names of the arguments of a network that come from the data.

    Arguments with the default ``None`` are excluded: the network determines them itself.
    """
    if not (inspect.isclass(target) and issubclass(target, nn.Module)):
        return []
    network: type = target
    takes, signature = declared(network), inspect.signature(network).parameters
    optional = [name for name, one in signature.items() if one.default is None]
    return [name for name in FROM_DATA if name in takes and name not in optional]


def make_parser(command: str, parser_class: Callable[..., Parser] = Parser) -> Parser:
    """Return the parser of a command with a configuration; it is built once.

    Args:
        command: The command.
        parser_class: Class of the parser.
    """
    # Modules of the standard library named in a configuration are not even imported.
    set_parsing_settings(import_path_denylist=sorted(sys.stdlib_module_names))
    # Texts in a configuration are parsed too, and YAML aliases could expand without end.
    set_loader(MODE, loaded, (yaml.YAMLError, YamlError))
    set_dumper(MODE, dumped)
    return _parser(command, parser_class)


@cache
def _parser(command: str, parser_class: Callable[..., Parser]) -> Parser:
    verb = commands()[command]
    needs = verb.configuration or Needs()
    parser = parser_class(
        prog=f"pfl {command}",
        verb=verb,
        exit_on_error=False,
        allow_abbrev=False,
        parser_mode=MODE,
    )
    for name, how in verb.typed_arguments.items():
        parser.add_argument(name, **{key: bare(value) for key, value in how.items()})
    parser.add_argument("--config", action="config", help=CONFIG_HELP)
    parser.add_argument("--seed", type=int, default=SEED, help=SEED_HELP)
    # The seed is no option of the loop, as the method's initial weights depend on it too.
    parser.add_class_arguments(FederatedLoop, "loop", default=LOOP_DEFAULTS, skip={"seed"})
    for key, base, required in (
        ("model", ClientModule, needs.model),
        ("data", catalogue.find(KINDS["data"]), needs.data),
    ):
        # Subclass arguments would replace a text that names a file by the file's content.
        parser.add_argument(f"--{key}", type=base | None, required=required)
    return parser
