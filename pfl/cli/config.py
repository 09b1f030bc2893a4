"""Parsed configurations (``seed``, ``loop``, ``model``, ``data``) and the objects they describe."""

from __future__ import annotations

import inspect
import sys
from argparse import ArgumentError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jsonargparse import Namespace
from torch import nn

from pfl.cli import catalogue, shipped
from pfl.cli.explain import (
    MissingError,
    UsageError,
    UserSettings,
    explained,
    in_plain_words,
    placed,
    sources,
)
from pfl.cli.imported import Imported
from pfl.cli.parser import Parser, from_data, with_class_paths
from pfl.cli.walk import FROM_DATA, Walk
from pfl.core.checks import needs_public
from pfl.core.client import ClientModule
from pfl.core.data import DataSource
from pfl.core.per_client import Variants, each_network
from pfl.core.seeds import derive, scoped
from pfl.core.task import Classification
from pfl.imports.hints import types_of
from pfl.imports.trust import Trust, TrustError, check_argument, mapping_of
from pfl.loop import FederatedLoop
from pfl.training.phases import single

if TYPE_CHECKING:
    from pfl.cli.untrusted import UntrustedFile

# (function that builds the objects, their class, whether it also builds those of subclasses)
Instantiator: TypeAlias = tuple[Callable[..., Any], type, bool]
# Keys that files may not have, since the parser would take them for its flags, and the remedy.
_FLAGS_ALONE = {
    "config": "give further files with --config",
    "print_config": "give the flag --print_config",
    "download_weights": "a file cannot allow downloads: give the flag --download_weights",
}
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
    def parse(
        cls,
        parser: Parser,
        argv: Sequence[str],
        untrusted: UntrustedFile | None = None,
        usual: Sequence[str] = (),
    ) -> Experiment:
        """Parse a command line.

        Args:
            parser: The parser of the command.
            argv: The command line.
            untrusted: A configuration file of someone else, which the command line overrides.
            usual: Flags that the files and flags of the command line override.

        Raises:
            UsageError: The command line or a configuration file is wrong.
        """
        argv = [*usual, *shipped.with_config_files(argv)]
        if untrusted is not None:
            argv = ["--config", str(untrusted.file), *untrusted.flags(), *argv]
            if untrusted.note:
                print(f"pfl: {untrusted.note}", file=sys.stderr)
        settings = sources(argv)
        # Not allowed in a file; see above.
        weights = any(item.keys == ("download_weights",) for item in settings)
        own = None if untrusted is None else ()
        trust = Trust(own, weights, command=True, filled=parser.filled)
        for item in settings:
            if item.keys[0] in _FLAGS_ALONE and not item.is_flag:
                raise item.error(_FLAGS_ALONE[item.keys[0]])
        types = types_of(parser)
        try:
            if untrusted is not None:
                untrusted.check(types, trust)
            Walk(settings, parser.verb, Imported(trust)).check()
            values = parser.parse_args(with_class_paths(argv, settings))
            for key, hint in types.items():
                if key in values:
                    check_argument(values[key], hint, key.split("."), trust)
            if untrusted is not None:
                theirs = f"{untrusted.file}:"
                given = [item.keys for item in settings if not item.place.startswith(theirs)]
                untrusted.check_values(values, given, trust)
        except ArgumentError as error:
            raise UsageError(in_plain_words(str(error))) from error
        except TrustError as error:
            raise UsageError(placed(error.what, error.keys, settings)) from error
        return cls(parser, values, settings)

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
            data: DataSource = self.make("data", self.values.data)
            data.prepare_data()
            data.setup()
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
                found = getattr(data, FROM_DATA[name].source)
                if name == "public_samples" and not found:
                    raise ValueError(needs_public(made.__name__))
                value["init_args"][name] = found
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
            needs a closure.
        TypeError: The method has several optimizers.
    """
    made = module.configure_optimizers()
    single(module, made)
    optimizer = type(made)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"optimizer {optimizer.__name__} computes the loss several times in a step, which no "
            "method supports; use one such as torch.optim.SGD"
        )
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
    if outputs.dim() != 2 or outputs.shape[0] != 2 or outputs.shape[1] < data.outputs:
        has = f"have {data.num_classes} classes" if data.num_classes else f"need {data.outputs}"
        raise ValueError(
            f"network {name} gives outputs of shape {tuple(outputs.shape[1:])}, but the data {has}"
        )
