"""What takes arguments in a configuration: classes, functions, and the configuration itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from typing import Any, Literal, NamedTuple, Protocol, get_args

from pfl.cli.commands import Command, Needs
from pfl.core.places import Place
from pfl.core.ranges import Range
from pfl.core.words import Word
from pfl.imports import hints

LOOP = "pfl.loop.FederatedLoop"
SAMPLER = "pfl.federation.sampling.UniformSampler"  # if no other is named
METHOD = "pfl.core.client.ClientModule"
TASK = "pfl.core.task.Task"
DATA = "datamodules.reader.ClientData"
DIVIDED = "datamodules.base.FederatedDataModule"
STOPPING = "pfl.callbacks.early_stopping.EarlyStopping"
NETWORK = "torch.nn.modules.module.Module"
# Flags that take no value.
SWITCHES = ("help", "print_config")


class _FromData(NamedTuple):
    """An argument of networks and methods whose value comes from the data.

    Attributes:
        hint: Type of the argument.
        source: Attribute of the data with the value.
    """

    hint: Any
    source: str


# Arguments of networks and methods that come from the data, by name.
FROM_DATA = {
    "num_classes": _FromData(int, "outputs"),
    "input_shape": _FromData(tuple[int, ...], "input_shape"),
    "num_clients": _FromData(int, "num_clients"),
    "public_samples": _FromData(int, "public_samples"),
}


class Lookup(Protocol):
    """Where classes come from: their source, or an import."""

    def base(self, path: str) -> Any:
        """Return the class at the path of one of this project's."""

    def find(self, name: str, declared: Any) -> Any:
        """Return the class or function of a name; ``None`` if it cannot be told.

        Raises:
            LookupError: There is none, it may not be used, or it does not fit its place.
        """

    def path_of(self, made: Any) -> str:
        """Return the path at which a class can be imported."""

    def tells_all(self, made: Any) -> bool:
        """Return ``False`` if only an import tells what a class or function really is."""

    def is_function(self, made: Any) -> bool:
        """Return ``True`` for a function, and no class."""

    def arguments(self, made: Any) -> Mapping[str, Parameter] | None:
        """Return the arguments of a class or function; ``None`` if they cannot be told."""

    @property
    def closed(self) -> bool:
        """Whether nobody else's modules take part, which could add classes and words."""

    def check_given(self, made: Any, given: Mapping[str, Any]) -> None:
        """Check the arguments of a class together, as far as that needs no call.

        Raises:
            ArgumentsError: The class would refuse them.
        """


class ArgumentsError(ValueError):
    """A class refuses its arguments.

    Args:
        what: What is wrong.
        names: The arguments that this depends on, as dotted keys.
    """

    def __init__(self, what: str, names: Sequence[str]) -> None:
        super().__init__(what)
        self.names = names


@dataclass(frozen=True)
class Kind:
    """What takes arguments.

    Attributes:
        name: Its name.
        arguments: Its arguments, with what stands beside their types.
        demanded: The arguments without a default that the configuration must give.
        filled: Those that are filled in later.
        made: The class or function; ``None`` for the top of a configuration.
    """

    name: str
    arguments: Mapping[str, Parameter]
    demanded: Sequence[str] = ()
    filled: Collection[str] = ()
    made: Any = None

    @cached_property
    def types(self) -> Mapping[str, Any]:
        """The declared types of its arguments; ``None`` where none is declared."""
        types = {name: _type_of(one) for name, one in self.arguments.items()}
        return types | {name: types[name] | None for name in self.filled}

    @cached_property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of numbers that stand beside types."""
        return {name: found[0] for name, found in self._beside(Range)}

    @cached_property
    def places(self) -> Mapping[str, Place]:
        """The files and folders that must exist."""
        return {name: found[0] for name, found in self._beside(Place)}

    @cached_property
    def words(self) -> Mapping[str, Word]:
        """What texts may say."""
        return {name: found[0] for name, found in self._beside(Word)}  # type: ignore[type-abstract]

    @cached_property
    def usual(self) -> Mapping[str, Any]:
        """The default values, where they are plain."""
        return {n: one.default for n, one in self.arguments.items() if one.default is not one.empty}

    def _beside(self, kind: type[hints.BesideT]) -> Iterator[tuple[str, list[hints.BesideT]]]:
        several = ((n, [*hints.beside(one.annotation, kind)]) for n, one in self.arguments.items())
        return ((name, found) for name, found in several if found)

    @property
    def needed(self) -> list[str]:
        """The arguments that must be given, in order; those that may be null can be left out."""
        types = self.types
        return [n for n in self.demanded if types[n] is None or not hints.takes_null(types[n])]


def top_of(command: Command, lookup: Lookup) -> Kind:
    """Return what the configuration of a command takes."""
    given = {name.lstrip("-"): how for name, how in command.typed_arguments.items()}
    types = {
        **dict.fromkeys(("config", *SWITCHES), Parameter.empty),
        **{name: _type_of_flag(how) for name, how in given.items()},
        **{"seed": int, "loop": lookup.base(LOOP)},
        **{"model": lookup.base(METHOD) | None, "data": lookup.base(DATA) | None},
    }
    if command.configuration is not None and command.configuration.named:
        types["model"] |= lookup.base(TASK)
    how = Parameter.KEYWORD_ONLY
    return Kind("", {name: Parameter(name, how, annotation=one) for name, one in types.items()})


def kind_of(made: Any, declared: Any, lookup: Lookup, needs: Needs) -> Kind | None:
    """Return what a class or a function takes in the place of a declared type.

    ``None`` if its arguments cannot be told.
    """
    found = None if made is None else lookup.arguments(made)
    if found is None:
        return None
    # What is needed in the place of a class that is not known cannot be told.
    known = hints.is_known(declared) or made is lookup.base(LOOP)
    demanded = [name for name, one in found.items() if one.default is one.empty] if known else []
    demanded = demanded[_given_by_caller(declared) :]
    filled = _filled(made, declared, found, lookup, needs)
    return Kind(made.__name__, found, demanded, filled, made)


def _filled(
    made: Any, declared: Any, arguments: Mapping[str, Parameter], lookup: Lookup, needs: Needs
) -> list[str]:
    """Return the arguments of a class that are filled in later."""
    method = inspect.isclass(made) and lookup.base(METHOD) in made.__mro__
    # A base that is not read, as Lightning's, does not tell, but its place does.
    told = (*getattr(made, "__mro__", ()), *hints.classes(declared))
    network = inspect.isclass(made) and lookup.base(NETWORK) in told
    names = [*FROM_DATA] * (method or network) + ["net"] * (method and not needs.data)
    return [name for name in names if name in arguments and arguments[name].default is not None]


def _type_of_flag(how: Mapping[str, Any]) -> Any:
    """Return the type of a command's own argument."""
    usual = bool if "action" in how else str
    one: Any = Literal[tuple(how["choices"])] if "choices" in how else how.get("type", usual)
    # A flag may give a single value, which the parser makes a list.
    return one | list[one] if how.get("nargs") in ("+", "*") else one


def _type_of(argument: Parameter) -> Any:
    """Return the declared type of an argument; ``None`` if there is none."""
    if argument.annotation is argument.empty:
        return None
    declared = hints.bare(argument.annotation)
    return declared | None if argument.default is None else declared


def _given_by_caller(declared: Any) -> int:
    """Return how many arguments the caller of a factory gives."""
    factories = (get_args(part) for part in hints.parts(declared) if hints.takes(part, (Callable,)))
    return max((len(one[0]) for one in factories if one and isinstance(one[0], list)), default=0)
