"""Parsed configurations (``seed``, ``loop``, ``model``, ``data``) and the objects they describe."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from jsonargparse import Namespace
from torch import nn

from pfl.cli import catalogue
from pfl.cli.explain import MissingError, UsageError, UserSettings, explained, in_plain_words
from pfl.cli.kinds import FROM_DATA
from pfl.cli.parser import Parser, from_data, make_parser
from pfl.cli.reading import Reading, read
from pfl.core import waits
from pfl.core.client import ClientModule
from pfl.core.data import DataSource, holders
from pfl.core.foreign import trains_itself
from pfl.core.learner import one_optimizer
from pfl.core.per_client import Variants, each_network
from pfl.core.seeds import derive, scoped
from pfl.core.task import Classification
from pfl.imports.trust import mapping_of
from pfl.loop import FederatedLoop

# (function that builds the objects, their class, whether it also builds those of subclasses)
Instantiator: TypeAlias = tuple[Callable[..., Any], type, bool]
# Errors that count as the user's when they occur while a configuration's objects are built.
REFUSALS = (ValueError, TypeError, OSError, ImportError)


@dataclass
class Experiment:
    """A parsed configuration and its objects, which are built on first use.

    Attributes:
        parser: The parser that read it.
        values: The parsed configuration.
        settings: The user's settings.
    """

    parser: Parser
    values: Namespace
    settings: UserSettings

    @classmethod
    def of(
        cls, reading: Reading, parser_class: type[Parser] = Parser, defaults: bool = True
    ) -> Experiment:
        """Return the experiment that a command line describes, once its classes are imported.

        Args:
            reading: The command line.
            parser_class: Class of the parser.
            defaults: Whether the values contain defaults.

        Raises:
            UsageError: A name or a value is wrong.
        """
        if reading.asks_help:
            # The parser lists the classes that it knows.
            catalogue.load()
        parser = make_parser(reading.verb, parser_class)
        try:
            values = parser.parse_args(reading.settle(), defaults=defaults)
        except ArgumentError as error:
            raise UsageError(in_plain_words(str(error))) from error
        return cls(parser, values, reading.settings)

    @classmethod
    def parse(cls, verb: str, argv: Sequence[str]) -> Experiment:
        """Return the experiment that a command line describes.

        Raises:
            UsageError: The command line or a configuration file is wrong.
        """
        return cls.of(read(verb, argv))

    @cached_property
    def loop(self) -> FederatedLoop:
        """The loop."""
        with explained(self.settings, *REFUSALS, part="loop"):
            section = Namespace(**vars(self.values.loop), seed=self.values.seed)
            loop: FederatedLoop = self.parser.instantiate(Namespace(loop=section)).loop
        return loop

    @cached_property
    def data(self) -> DataSource:
        """The data module, prepared and divided among the clients."""
        with explained(self.settings, *REFUSALS, part="data"):
            waits.lap("imports")
            kind = self.values.data.class_path.rpartition(".")[2]
            with waits.said(f"reading the data of {kind}"):
                data: DataSource = self.make("data", self.values.data)
                data.prepare_data()
                data.setup()
            waits.lap("data")
        return data

    def look(self) -> None:
        """Read the data.

        Raises:
            MissingError: The data do not exist.
            UsageError: The data cannot be used.
        """
        try:
            _ = self.data
        except UsageError as error:
            if isinstance(error.__cause__, FileNotFoundError | ImportError):
                raise MissingError(f"cannot compare without the data: {error}") from error
            raise

    @cached_property
    def model(self) -> Namespace:
        """Class and arguments of the method, completed from the data."""
        model: Namespace = self.values.model.clone()
        data = self.data
        with explained(self.settings, *REFUSALS, part="model"):
            fill(model, data)
        with explained(self.settings, *REFUSALS, part="data"):
            # Also rejects a loss that does not suit the task.
            task = self.data.task
        if task != Classification():
            path = f"{type(task).__module__}.{type(task).__qualname__}"
            options = Namespace({name: as_in_yaml(value) for name, value in task.options().items()})
            model.init_args.task = Namespace(class_path=path, init_args=options)
        return model

    @cached_property
    def module(self) -> ClientModule:
        """The method, with initial weights that depend only on the seed."""
        model, data = self.model, self.data
        with explained(self.settings, *REFUSALS, part="model"):
            seed = derive(self.values.seed, "init")
            several = _names_variants(model)
            with scoped(seed):
                module: ClientModule = self.make(
                    "model", model, _each_from(seed) if several else ()
                )
            for _ in each_network(module):
                check_fit(module, data)
        return module

    @property
    def text(self) -> str:
        """The configuration as YAML."""
        return self.parser.dump(self.values, skip_validation=True, skip_unset=False)

    def make(self, key: str, value: Namespace, instantiators: Sequence[Instantiator] = ()) -> Any:  # noqa: ANN401
        """Build the object described by a part of the configuration.

        ``instantiators`` replace the constructors of their classes.
        """
        made = self.parser.instantiate(
            Namespace({key: value}), instantiate_groups=False, instantiators=instantiators
        )
        return made[key]


def _names_variants(value: Any) -> bool:  # noqa: ANN401
    """Return ``True`` if a part of a configuration gives clients different networks."""
    content = mapping_of(value)
    named = content.get("class_path") if isinstance(content, Mapping) else None
    made = catalogue.find(named) if isinstance(named, str) else None
    if isinstance(made, type) and issubclass(made, Variants):
        return len(content["init_args"]["nets"]) > 1
    return any(map(_names_variants, inner_values(value)))


def _each_from(seed: int) -> list[Instantiator]:
    """Return instantiators that build every network from the same seed, in any order."""

    def build(made: type, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        if issubclass(made, ClientModule | Variants):
            return made(*arguments, **options)
        with scoped(seed):
            return made(*arguments, **options)

    return [(build, nn.Module, True)]


def as_in_yaml(value: Any) -> Any:  # noqa: ANN401
    """Convert a tuple to a list and return any other value unchanged."""
    return [*value] if isinstance(value, tuple) else value


def fill(value: Any, data: DataSource) -> None:  # noqa: ANN401
    """Fill in the arguments of networks that are determined by the data."""
    if isinstance(value, Namespace | Mapping) and "class_path" in value:
        made = catalogue.find(value["class_path"])
        for name in from_data(made):
            if value["init_args"][name] is None:
                value["init_args"][name] = getattr(data, FROM_DATA[name].source)
    for item in inner_values(value):
        fill(item, data)


def inner_values(value: Any) -> Iterable[Any]:  # noqa: ANN401
    """Return the values of a mapping or a list, and none for any other value."""
    content = mapping_of(value)
    if isinstance(content, Mapping):
        return content.values()
    return content if isinstance(content, list | tuple) else ()


def check_fit(module: ClientModule, data: DataSource) -> None:
    """Check the optimizer, and the network on two blank inputs.

    Raises:
        ValueError: The network does not accept the inputs or has too few outputs, or the optimizer
            needs sparse gradients.
        TypeError: The method has several optimizers, or one that needs a closure.
    """
    if trains_itself(module.net):
        return  # Only its own loops know what it takes.
    optimizer = type(one_optimizer(module, module.configure_optimizers()))
    if issubclass(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            f"optimizer {optimizer.__name__} needs sparse gradients, but networks have dense "
            "ones; use one such as torch.optim.Adam"
        )
    name, inputs = type(module.net).__name__, data.blank(2)
    try:
        with torch.no_grad(), scoped(0):
            outputs = module.eval()(inputs)
    except RuntimeError as error:
        shape, whole = f"of shape {tuple(data.input_shape)}", ""
        if isinstance(inputs, torch.Tensor) and not inputs.is_floating_point():
            shape += f" and type {str(inputs.dtype).removeprefix('torch.')}"
            whole = ". Integers are not converted: give floats, or images of bytes of shape "
            whole += "(n, C, H, W)"
        raise ValueError(
            f"network {name} does not accept the data's inputs {shape}: {error}{whole}"
        ) from error
    finally:
        module.train()
    if outputs.dim() > 2 and _is_dense(data):
        # Such outputs are tried with their targets, right before the first round.
        return
    if outputs.dim() != 2 or outputs.shape[0] != 2 or outputs.shape[1] < data.outputs:
        has = f"have {data.num_classes} classes" if data.num_classes else f"need {data.outputs}"
        raise ValueError(
            f"network {name} gives outputs of shape {tuple(outputs.shape[1:])}, but the data {has}"
        )


def _is_dense(data: DataSource) -> bool:
    """Return whether a target has further axes than one of classes or numbers."""
    client = next(iter(holders(data, "train")))
    return data.split(client, "train").batch(torch.zeros(1, dtype=torch.int64)).y.dim() > 2
