"""The parser of command lines and YAML files: jsonargparse's, used as Lightning's CLI uses it.

It differs in two points: networks need not be given what the data determine, and the name of a
class of this project is never taken for another library's.
"""

from __future__ import annotations

import inspect
import re
import sys
from argparse import Action
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from textwrap import fill
from typing import Any, NamedTuple

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

from pfl.cli import catalogue, known
from pfl.cli.commands import CONFIG_HELP, LOOP_DEFAULTS, SEED_HELP, Needs, commands
from pfl.cli.explain import UserSettings, with_values
from pfl.cli.known import KINDS
from pfl.core.client import ClientModule
from pfl.disk.yaml_text import YamlError, dumped, loaded
from pfl.engines.named import NAMES, engine_class
from pfl.imports.hints import declared
from pfl.imports.plugins import PACKAGES
from pfl.loop import FederatedLoop


class _FromData(NamedTuple):
    """An argument of networks and methods whose value comes from the data.

    Attributes:
        hint: Its type.
        source: The attribute of the data that holds the value.
    """

    hint: Any
    source: str


# Arguments that networks and methods take from the data, by name.
FROM_DATA = {
    "num_classes": _FromData(int, "outputs"),
    "input_shape": _FromData(tuple[int, ...], "input_shape"),
    "num_clients": _FromData(int, "num_clients"),
    "public_samples": _FromData(int, "public_samples"),
}
# Packages whose classes the help lists without their path.
_SHORT = (*PACKAGES, "torch.optim.")
# jsonargparse's name for the YAML reader that is set in make_parser.
MODE = "pfl"


class Formatter(DefaultHelpFormatter):
    """A help formatter of plain text.

    It lists only the project's own classes, where it has any of a kind.
    """

    def _expand_help(self, action: Action) -> str:
        text = known.unmarked(super()._expand_help(action))
        # The words that an option may be stand beside its name.
        text = re.sub(r"type: Literal\[.*?\], |<class '(\w+)'>", r"\1", text)
        return re.sub(r"known subclasses: ([\w., ]+)", self._own, text)

    def start_section(self, heading: str | None) -> None:
        """Start a section; its heading, the first sentence of a class, is wrapped."""
        super().start_section(heading and fill(known.unmarked(heading), self._width))

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

    jsonargparse parses nested classes with parsers of the same class, so this holds for networks at
    any depth.

    The help of a class is made by such a parser as well.

    Args:
        command_arguments: Names of the command's arguments that are not part of the configuration.
        args: As jsonargparse takes them.
        options: As jsonargparse takes them.
    """

    command = "fit"  # one that takes the arguments of a class

    def __init__(self, *args: Any, command_arguments: Sequence[str] = (), **options: Any) -> None:
        if wanted := re.fullmatch(r"Help for (\S+)\.help=(\S+)", options.get("description") or ""):
            flag, name = wanted[1], wanted[2].rpartition(".")[2]
            usage = f"pfl {self.command} {flag} {name} [{flag}.ARGUMENT VALUE ...]"
            options |= {"description": None, "usage": usage}
        super().__init__(*args, formatter_class=Formatter, **options)
        self.command_arguments = command_arguments

    def add_class_arguments(
        self, class_type: type, nested_key: str | None = None, *args: Any, **options: Any
    ) -> list[str]:
        """Add a class's arguments; those that are filled in later become optional."""
        filled = self.filled(class_type)
        options["skip"] = {*(options.get("skip") or ()), *filled}
        added: list[str] = super().add_class_arguments(class_type, nested_key, *args, **options)
        for name, (hint, text) in filled.items():
            key = f"{nested_key}.{name}" if nested_key else name
            self.add_argument(f"--{key}", type=hint | None, default=None, help=text)
            added.append(key)
        return added

    def filled(self, target: Any) -> Mapping[str, tuple[Any, str]]:  # noqa: ANN401
        """Return type and help of those arguments of a class that are filled in later, by name."""
        return {name: (FROM_DATA[name].hint, "(default: the data's)") for name in from_data(target)}

    def dump(self, namespace: Namespace, *args: Any, **options: Any) -> str:
        """Return the configuration as YAML, without the command's own arguments."""
        lasting = namespace.clone()
        for name in self.command_arguments:
            lasting.pop(name, None)
        text: str = super().dump(lasting, *args, **options)
        return text


def _with_paths(value: Any, own: bool) -> Any:  # noqa: ANN401
    """Spell out the names of classes; import modules of the user's ``own`` files, if it is one."""
    if isinstance(value, list):
        return [_with_paths(item, own) for item in value]
    if isinstance(value, str) and own:
        catalogue.import_from_working_folder(value)
    if not isinstance(value, dict):
        return value
    spelled = {key: _with_paths(item, own) for key, item in value.items()}
    if isinstance(path := spelled.get("class_path"), str):
        spelled["class_path"] = catalogue.spelling(path)
    return spelled


def with_class_paths(argv: Sequence[str], settings: UserSettings) -> list[str]:
    """Replace names in flags by those that the parser understands.

    These are classes of the model, and an engine that has flags of its own.
    """
    configured = [n for n, word in enumerate(argv) if word.startswith("--loop.engine.")]
    engines = [item for item in settings if item.keys == ("loop", "engine") and item.text]

    def spelled(flag: str, word: str) -> str:
        if configured and flag == "--loop.engine" and word in NAMES:
            return engine_class(word).__name__
        return catalogue.spelling(word) if flag.startswith("--model") else word

    words = with_values(argv, spelled)
    if configured and engines and engines[-1].text in NAMES:
        # A file may name it; repeated, a flag changes nothing.
        words.insert(configured[0], f"--loop.engine={engine_class(engines[-1].text).__name__}")
    return words


def from_data(target: Any) -> list[str]:  # noqa: ANN401
    """Return the names of the arguments that a network takes from the data.

    An argument with the default ``None`` is not among them: the network determines it itself.
    """
    if not (inspect.isclass(target) and issubclass(target, nn.Module)):
        return []
    network: type = target
    takes, signature = declared(network), inspect.signature(network).parameters
    optional = [name for name, one in signature.items() if one.default is None]
    return [name for name in FROM_DATA if name in takes and name not in optional]


def make_parser(
    command: str, parser_class: Callable[..., Parser] = Parser, own: bool = True
) -> Parser:
    """Return the parser of a command that runs on a configuration; it is made once.

    Args:
        command: The command.
        parser_class: Class of the parser.
        own: Whether files are the user's own, which may name modules of the working folder.
    """
    catalogue.load()
    # Named in a configuration, a module of Python's is not even imported.
    set_parsing_settings(import_path_denylist=sorted(sys.stdlib_module_names))
    # Text within a configuration is parsed too: aliases could expand it without end.
    set_loader(MODE, lambda text: _with_paths(loaded(text), own), (yaml.YAMLError, YamlError))
    set_dumper(MODE, dumped)
    return _parser(command, parser_class)


@cache
def _parser(command: str, parser_class: Callable[..., Parser]) -> Parser:
    verb = commands()[command]
    needs = verb.configuration or Needs()
    parser = parser_class(
        prog=f"pfl {command}",
        command_arguments=[name.removeprefix("--") for name in verb.typed_arguments],
        exit_on_error=False,
        allow_abbrev=False,
        parser_mode=MODE,
    )
    for name, how in verb.typed_arguments.items():
        parser.add_argument(name, **how)
    parser.add_argument("--config", action="config", help=CONFIG_HELP)
    parser.add_argument("--seed", type=int, default=42, help=SEED_HELP)
    # The seed stands beside the loop: the method's initial weights depend on it, too.
    parser.add_class_arguments(FederatedLoop, "loop", default=LOOP_DEFAULTS, skip={"seed"})
    for key, base, required in (
        ("model", ClientModule, needs.model),
        ("data", catalogue.find(KINDS["data"]), needs.data),
    ):
        # Not as subclass arguments, with which text that names a file is replaced by its content.
        parser.add_argument(f"--{key}", type=base | None, required=required)
    return parser
