"""From command lines and YAML files to a federation: keys ``seed``, ``loop``, ``model``, ``data``.

The parser is jsonargparse's, with the habits of Lightning's own command line. What the network must
know of the data is not asked for: it is read off the data module once that is there.
"""

from __future__ import annotations

import inspect
import re
import sys
from argparse import Action, ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from jsonargparse import (
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
    get_loader,
    set_dumper,
    set_loader,
)
from torch import nn

from pfl import catalogue
from pfl.explain import Given, UsageError, explain, explained, find_misspelling, sources
from pfl.loop import FederatedLoop
from pfl.seeds import derive, scoped

if TYPE_CHECKING:
    from datamodules import FederatedDataModule
    from lightning_modules.base import ClientModule

# Arguments of networks that are the data's to say, and their types.
FROM_DATA = {"num_classes": int, "input_shape": tuple[int, int, int]}
# Kinds of errors that are the user's when objects are made of a configuration.
REFUSALS = (ValueError, TypeError, OSError, ImportError)
# Our reading of YAML: a class name of this project is never taken for another library's.
MODE = "pfl"


class Formatter(DefaultHelpFormatter):
    """Help that lists the project's own classes, where it has any, instead of all there are."""

    def _expand_help(self, action: Action) -> str:
        text: str = super()._expand_help(action)
        return re.sub(r"known subclasses: ([\w., ]+)", self._own, text)

    @staticmethod
    def _own(listed: re.Match[str]) -> str:
        names = listed[1].split(", ")
        own = [name.rpartition(".")[2] for name in names if name.startswith(catalogue.PACKAGES)]
        if "torch.nn.Module" in names:
            own = [net.__name__ for net in catalogue.of_kind("nets")]
        return f"known: {', '.join(own or names)}"


class Parser(ArgumentParser):
    """A parser that does not ask for what :data:`FROM_DATA` names.

    jsonargparse makes the parsers of nested classes from its own kind, so this one reaches every
    network, at any depth.

    Args:
        own: Arguments of the command, which are no part of the configuration.
        args: As jsonargparse takes them.
        options: Likewise.
    """

    def __init__(self, *args: Any, own: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, formatter_class=Formatter, **options)
        self.own = own

    def add_class_arguments(
        self,
        class_type: type,
        nested_key: str | None = None,
        *args: Any,
        **options: Any,
    ) -> list[str]:
        """Add a class's arguments; those of a network that the data tell become optional."""
        told = from_data(class_type)
        options["skip"] = {*(options.get("skip") or ()), *told}
        added: list[str] = super().add_class_arguments(class_type, nested_key, *args, **options)
        for name in told:
            key = f"{nested_key}.{name}" if nested_key else name
            kind = FROM_DATA[name] | None
            self.add_argument(f"--{key}", type=kind, default=None, help="(default: the data's)")
            added.append(key)
        return added

    def dump(self, namespace: Namespace, *args: Any, **options: Any) -> str:
        """The configuration as YAML, without what concerns this call only."""
        lasting = namespace.clone()
        for name in self.own:
            lasting.pop(name, None)
        text: str = super().dump(lasting, *args, **options)
        return text


def _with_paths(value: Any, paths: Mapping[str, str]) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_with_paths(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _with_paths(item, paths) for key, item in value.items()}
    if (path := paths.get(str(found.get("class_path")))) is not None:
        found["class_path"] = path
    return found


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """The words of a command line, with full paths where a flag of the model names a class."""
    paths = catalogue.clashes()
    words: list[str] = []
    for word in argv:
        flag, equals, value = word.partition("=")
        if equals and flag.startswith("--model") and value in paths:
            words.append(f"{flag}={paths[value]}")
        elif word in paths and words and words[-1].startswith("--model"):
            words.append(paths[word])
        else:
            words.append(word)
    return words


@cache
def arguments(kind: type) -> Sequence[str]:
    """Names of the arguments of a class, with those that it hands on to its bases."""
    added: list[str] = ArgumentParser().add_class_arguments(kind, fail_untyped=False)
    return added


def from_data(kind: Any) -> list[str]:  # noqa: ANN401
    """Which arguments of a class are the data's to say.

    A default of ``None`` means that the network knows better ways to find out.
    """
    if not _is_network(kind):
        return []
    takes, own = arguments(kind), inspect.signature(kind).parameters
    return [n for n in FROM_DATA if n in takes and not (n in own and own[n].default is None)]


def _is_network(kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, nn.Module)


def make_parser(command: str, own: Sequence[str] = (), model: bool = True) -> Parser:
    """The parser of a command that runs on a configuration.

    Args:
        command: As it is called.
        own: See :class:`Parser`.
        model: Whether the command needs a model.
    """
    catalogue.load()
    read, paths = get_loader("yaml"), catalogue.clashes()
    set_loader(MODE, lambda text: _with_paths(read(text), paths), (yaml.YAMLError,))
    set_dumper(MODE, lambda content: yaml.safe_dump(content, sort_keys=False))
    parser = Parser(
        prog=f"pfl {command}", own=own, exit_on_error=False, allow_abbrev=False, parser_mode=MODE
    )
    parser.add_argument(
        "--config", action="config", help="a YAML file; of several, later ones win, and flags last"
    )
    parser.add_argument("--seed", type=int, default=42, help="all random choices derive from it")
    parser.add_class_arguments(
        FederatedLoop,
        "loop",
        default={"default_root_dir": "runs", "sampler": {"class_path": "UniformSampler"}},
    )
    parser.link_arguments("seed", "loop.seed")
    for key, base, required in (
        ("model", "lightning_modules.base.ClientModule", model),
        ("data", "datamodules.FederatedDataModule", True),
    ):
        parser.add_subclass_arguments(catalogue.find(base), key, required=required)
    return parser


@dataclass
class Experiment:
    """A parsed configuration, and the objects that it names, made when they are asked for.

    Attributes:
        parser: That it was parsed with.
        values: The parsed configuration.
        given: What it was parsed of.
    """

    parser: Parser
    values: Namespace
    given: Sequence[Given]

    @classmethod
    def parse(cls, parser: Parser, argv: Sequence[str]) -> Experiment:
        """Parse a command line.

        Raises:
            UsageError: It, or a configuration file, is wrong.
        """
        # The classes of a user's own project stand beside the configuration.
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        given = sources(argv)
        try:
            return cls(parser, parser.parse_args(_spelled_out(argv)), given)
        except ArgumentError as error:
            top = dict.fromkeys(("config", "seed", "model", "data", "print_config", *parser.own))
            find_misspelling(given, {**top, "loop": FederatedLoop}, arguments)
            raise UsageError(explain(error, given)) from error

    @cached_property
    def loop(self) -> FederatedLoop:
        """The loop."""
        with explained(self.given, *REFUSALS, part="loop"):
            part = Namespace(seed=self.values.seed, loop=self.values.loop)
            loop: FederatedLoop = self.parser.instantiate(part).loop
        return loop

    @cached_property
    def data(self) -> FederatedDataModule:
        """The data module, read and divided."""
        with explained(self.given, *REFUSALS, part="data"):
            data: FederatedDataModule = self._make("data", self.values.data)
            data.prepare_data()
            data.setup()
        return data

    @cached_property
    def model(self) -> Namespace:
        """Class and arguments of the method, with what the data say of it."""
        model: Namespace = self.values.model.clone()
        fill(model, self.data)
        return model

    @cached_property
    def module(self) -> ClientModule:
        """The method, with initial weights that depend on nothing but the seed."""
        model, data = self.model, self.data
        with explained(self.given, *REFUSALS, part="model"):
            with scoped(derive(self.values.seed, "init")):
                module: ClientModule = self._make("model", model)
            check_fit(module, data)
        return module

    @property
    def text(self) -> str:
        """The configuration as YAML."""
        return self.parser.dump(self.values, skip_validation=True)

    def _make(self, key: str, value: Namespace) -> Any:  # noqa: ANN401
        part = Namespace({key: value})
        return self.parser.instantiate(part, instantiate_groups=False)[key]


def fill(value: Any, data: FederatedDataModule) -> None:  # noqa: ANN401
    """Tell every network in a parsed configuration what it must know of the data."""
    if isinstance(value, Namespace | Mapping):
        for name in FROM_DATA:
            if "class_path" in value and name in from_data(catalogue.find(value["class_path"])):
                arguments = value["init_args"]
                if arguments[name] is None:
                    arguments[name] = getattr(data, name)
        for item in vars(value).values() if isinstance(value, Namespace) else value.values():
            fill(item, data)
    elif isinstance(value, list | tuple):
        for item in value:
            fill(item, data)


def check_fit(module: ClientModule, data: FederatedDataModule) -> None:
    """Try the network on two blank inputs.

    Raises:
        ValueError: It cannot take the data's inputs, or has too few outputs.
    """
    name, shape, classes = type(module.net).__name__, data.input_shape, data.num_classes
    try:
        with torch.no_grad(), scoped(0):
            logits = module.eval()(torch.zeros(2, *shape))
    except RuntimeError as error:
        raise ValueError(
            f"the network {name} cannot take the data's inputs of shape {tuple(shape)}: {error}"
        ) from error
    finally:
        module.train()
    if logits.shape[0] != 2 or logits.shape[1] < classes:
        raise ValueError(
            f"the network {name} gives outputs of shape {tuple(logits.shape[1:])}, the data have "
            f"{classes} classes"
        )
