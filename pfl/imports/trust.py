"""Checks of the objects that a configuration or an exported model names, before any is called.

Plain values name an object as ``{"class_path": ..., "init_args": {...}}``, or by its dotted path
alone. It must belong to :data:`LISTED`, to an installed plug-in, or to modules of the user
(:class:`Trust`), and fit the type declared for its place: a class must be a subclass of that type.
Of functions only torchvision's builders of networks and those of the user's modules may be named,
if they are annotated to return that type; and in a configuration of the user's also others of
:data:`LISTED`, where a function is itself the value.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from pfl.imports import hints, plugins, stubs

# Modules whose classes any file may name; nothing else in their packages may be named.
LISTED = (
    *(name.rstrip(".") for name in plugins.PACKAGES),
    *("torch.nn", "torch.optim", "torchmetrics"),
    *("torchvision.models", "torchvision.transforms", "torchvision.datasets"),
    "lightning.pytorch.loggers",
)
# torchmetrics metrics that download networks.
_PRETRAINED = tuple(
    f"torchmetrics.{name}"
    for name in (
        *("audio", "multimodal", "text.bert", "text.infolm", "image.arniqa", "image.dists"),
        *("image.fid", "image.inception", "image.kid", "image.lpip", "image.mifid"),
        "image.perceptual_path_length",
    )
)
# Packages of the project, those that it uses, and Python's.
CLOSED = {*sys.stdlib_module_names, *(name.partition(".")[0] for name in LISTED)}
# Where torch defines functions in C++, and where it offers them.
BUILTINS = ("torch._C._nn.", "torch.nn.functional.")
# One more than the largest whole number that fits into a tensor.
LIMIT = 2**63
# Folders of installed packages.
INSTALLED = {"site-packages", "dist-packages"}


class TrustError(ValueError):
    """An object that is named must not be used.

    Args:
        what: What is wrong.
        keys: Keys of the name, without ``init_args``.
    """

    def __init__(self, what: str, keys: Sequence[str] = ()) -> None:
        super().__init__(f"{'.'.join(keys)}: {what}" if keys else what)
        self.what = what
        self.keys = tuple(keys)


@dataclass(frozen=True)
class Trust:
    """What may be named besides :data:`LISTED` and installed plug-ins.

    Attributes:
        own: Dotted paths of modules and objects. ``None``, for a configuration of the user: all
            modules that are not installed, and classes of other installed packages.
        weights: Whether networks may download pretrained weights.
        command: Whether the user gives options of a command, and not arguments of a function.
        installs: Whether names come from elsewhere, so that nothing can be passed beside them.
        filled: Returns the names of a class's arguments that may be null because they are filled in
            later.
    """

    own: Sequence[str] | None = None
    weights: bool = False
    command: bool = False
    installs: bool = False
    filled: Callable[[Any], Container[str]] = lambda target: ()

    def check_name(self, path: str, keys: Sequence[str] = ()) -> None:
        """Refuse the path of an object that may not be named, without importing it.

        Raises:
            TrustError: It may not be named.
        """
        if is_listed(path) or _below(path, self.own or ()):
            return
        if self.own is None and path.partition(".")[0] not in CLOSED:
            return
        remedy = "--trust the file" if self.command else f"pass trust=[{path!r}]"
        own = "your own modules" if self.own is None else f"a plug-in (or {remedy})"
        if self.installs:
            own = "a plug-in that is installed here"
        known = ", ".join(LISTED[len(plugins.PACKAGES) :])
        raise TrustError(
            f"names {path}, which belongs neither to this project nor to {known} or {own}", keys
        )

    def check_text(self, text: str) -> None:
        """Refuse untrusted text before a parser reads it, which imports what the text names.

        Raises:
            TrustError: It names an object that may not be named, or a parser would not read it as
                text.
        """
        if is_path(text):
            self.check_name(text)
        elif _reads_otherwise(text):
            raise TrustError("expected plain text, got text that a parser reads as YAML")

    def check_weights(
        self, made: Any, arguments: Mapping[str, Any], keys: Sequence[str] = ()
    ) -> None:
        """Refuse arguments with which a network of torchvision downloads pretrained weights.

        Raises:
            TrustError: It would, and may not.
        """
        if self.weights or made is None or not _below(_home(made), ("torchvision.models",)):
            return
        for name, item in arguments.items():
            if name.startswith(("weights", "pretrained")) and item:
                what = f"{name} may be downloaded only with {self.option}"
                raise TrustError(what, (*keys, name))

    @property
    def option(self) -> str:
        """The option with which pretrained weights may be downloaded."""
        typed = self.own is None or self.command
        return "--download_weights" if typed else "download_weights=True"

    def owns(self, module: str) -> bool:
        """Return ``True`` if a module is the user's own, whose functions may be named too."""
        if self.own is not None:
            return _below(module, self.own)
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None or module.partition(".")[0] in CLOSED:
            return False
        return _below(module, _plugins()) or INSTALLED.isdisjoint(Path(file).parts)


# The user's own configuration.
CONFIGURATION = Trust()


def check_argument(value: Any, hint: Any, keys: Sequence[str], trust: Trust) -> None:
    """Check the value of an argument as :func:`check_calls` does, and that it is not null.

    Raises:
        TrustError: It is null and needs a value; or see :func:`check_calls`.
    """
    if value is None and not hints.takes_null(hint):
        # In Python 3.10, a type with arguments such as Callable[[A], B] is a class too.
        plain_class = inspect.isclass(hint) and get_origin(hint) is None
        classes = [hint] if plain_class else hints.classes(hint)
        names = " or ".join(one.__name__ for one in classes) or "a value"
        raise TrustError(f"expected {names}, got null", keys)
    check_calls(value, hint, keys, trust)


def check_calls(
    value: Any, hint: Any, keys: Sequence[str] = (), trust: Trust = CONFIGURATION
) -> None:
    """Refuse every object named in a value that is not trusted or does not fit its place.

    Args:
        value: A part of a configuration, as it was parsed or in plain values.
        hint: The type declared for it.
        keys: Keys that lead to the part.
        trust: What may be named.

    Raises:
        TrustError: An object is not trusted or has the wrong type, a path names nothing, text
            describes an object, or a number is NaN or must be finite.
    """
    if isinstance(value, int | float):
        check_numbers(value, keys)
    content = mapping_of(value)
    if isinstance(content, list | tuple | set):
        for number, item in enumerate(content):
            check_calls(item, hint, (*keys, str(number)), trust)
    elif isinstance(content, Mapping):
        _check_mapping(content, hint, keys, trust)
    elif isinstance(value, str):
        _check_text(value, hint, keys, trust)
    elif inspect.isclass(value) or (callable(value) and hints.takes(hint, hints.CALLABLES)):
        # The parser has already replaced a path by its class or function.
        check_object(value, _home(value), hint, keys, trust)


def check_numbers(value: Any, keys: Sequence[str] = ()) -> None:
    """Refuse numbers that no argument can use, also those in lists and mappings.

    Raises:
        TrustError: A number is NaN, does not fit into a tensor, or must be finite.
    """
    if isinstance(value, list | tuple | set):
        for item in value:
            check_numbers(item, keys)
    elif isinstance(value, Mapping):
        check_numbers([*value.values()], keys)
    elif isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise TrustError("expected a number, got nan", keys)
        # Optimisers accept infinity, but then the first step is not finite.
        if "optimizer" in keys:
            raise TrustError(f"expected a finite number, got {value}", keys)
    elif isinstance(value, int) and not -LIMIT <= value < LIMIT:
        raise TrustError("expected a number below 2**63, which fits into a tensor", keys)


def _check_mapping(
    content: Mapping[str, Any], hint: Any, keys: Sequence[str], trust: Trust
) -> None:
    path, declared = content.get("class_path"), tuple(hints.classes(hint))
    mapped = hints.takes(hint, hints.MAPPINGS) and (path is None or not declared)
    if mapped or (path is None and len(declared) != 1):
        # A mapping that is declared as one is not an object, but its values may be.
        inner = hints.values_of(hint) if mapped else hint
        for key, item in content.items():
            check_calls(item, inner, (*keys, str(key)), trust)
        return
    made = declared[0] if path is None else checked(str(path), hint, keys, trust)
    arguments = content
    # A dataclass is given without its path.
    if path is not None or "init_args" in content:
        parts = (mapping_of(content.get(name) or {}) for name in ("init_args", "dict_kwargs"))
        arguments = {name: item for part in parts for name, item in dict(part).items()}
    _check_arguments(made, arguments, keys, trust)


def _check_arguments(
    made: Any, arguments: Mapping[str, Any], keys: Sequence[str], trust: Trust
) -> None:
    """Check the arguments that a configuration gives to a class or a function."""
    types, usual, filled = hints.declared(made), hints.defaults(made), trust.filled(made)
    trust.check_weights(made, arguments, keys)
    for name, item in arguments.items():
        if not is_default(item, usual.get(name, made)) and not (item is None and name in filled):
            check_argument(item, types.get(name), (*keys, name), trust)


def _check_text(text: str, hint: Any, keys: Sequence[str], trust: Trust) -> None:
    declared, words = tuple(hints.classes(hint)), get_args(hint)
    if (declared or hints.takes(hint, hints.CALLABLES)) and is_path(text):
        # If any text is allowed too, the parser decides whether it is a class.
        if str not in words:
            checked(text, hint, keys, trust)
        elif trust.own is not None:
            trust.check_name(text, keys)
    elif trust.own is not None and not hints.is_plain(hint):
        check_described(text, keys)


def check_described(text: str, keys: Sequence[str]) -> None:
    """Refuse text that a parser reads as a mapping, a list or another text.

    Raises:
        TrustError: It does.
    """
    if _reads_otherwise(text):
        raise TrustError("expected keys and values or a list, got text that describes them", keys)


def checked(path: str, hint: Any, keys: Sequence[str], trust: Trust) -> Any:
    """Return the object at a path, if it may be named and fits the declared type."""
    trust.check_name(path, keys)
    try:
        target = named(path)
    except ImportError as error:
        # The place takes any value, so the parser has not looked for an object.
        raise TrustError(str(error), keys) from error
    check_object(target, path, hint, keys, trust)
    return target


def check_object(target: Any, path: str, hint: Any, keys: Sequence[str], trust: Trust) -> None:
    """Refuse an object that may not be named or does not fit the declared type."""
    declared, home = tuple(hints.classes(hint)), _home(target)
    if not declared and not hints.takes(hint, hints.CALLABLES):
        raise TrustError(f"{path} is not allowed here: the argument declares no class", keys)
    if not inspect.isclass(target) and not inspect.isroutine(target):
        raise TrustError(f"{path} is neither a class nor a function", keys)
    # torch.nn.modules.module.warnings.warn does not belong to torch.nn.
    trust.check_name(home, keys)
    if not trust.weights and _below(home, _PRETRAINED):
        raise TrustError(f"{path} downloads a network, which only {trust.option} allows", keys)
    if not inspect.isclass(target):
        what = _unfit_function(target, path, hint, trust)
    else:
        what = unfit_class(target, path, declared) if declared else _uncalled(target, path, trust)
    if what:
        raise TrustError(what, keys)


def unfit_class(target: type, path: str, declared: Sequence[type]) -> str:
    """Return why no object of a class may stand in a place of some types; empty if one may."""
    if not any(base in target.__mro__ for base in declared):
        names = " or ".join(base.__name__ for base in declared)
        return f"{path} is not a subclass of {names}"
    if stubs.is_base(target):
        return f"{path} is a base class: name one that is derived from it"
    return ""


def _uncalled(target: type, path: str, trust: Trust) -> str:
    """Return why objects of a class may not stand in the place of a function; empty if they may."""
    called = any("__call__" in vars(base) for base in target.__mro__)
    if called and (is_listed(_home(target)) or trust.owns(target.__module__)):
        return ""
    return f"{path} is not allowed here: its objects are not functions"


def _unfit_function(target: Any, path: str, hint: Any, trust: Trust) -> str:
    """Return why a function may not be called in its place; empty if it may."""
    declared = tuple(hints.classes(hint))
    names = " or ".join(base.__name__ for base in declared)
    returned = tuple(hints.classes(_returns(target)))
    fits = returned and all(any(base in one.__mro__ for base in declared) for one in returned)
    if declared and not fits:
        return f"{path} is not annotated to return {names}"
    # The user names a function to be used, as F.gelu, where no object is built of it.
    used = trust.own is None and hints.takes_function(hint) and is_listed(path)
    owned = used or trust.owns(target.__module__)
    if not owned and target not in _builders(_home(target)):
        return f"the function {path} is not allowed here: name a class"
    return ""


def _home(target: Any) -> str:
    """Return the path at which a class or a function is defined, or that of an object's class.

    That of a function of torch's in C++ is where it is offered.
    """
    if not hasattr(target, "__qualname__"):
        target = type(target)
    return f"{target.__module__}.{target.__qualname__}".replace(*BUILTINS)


def _builders(home: str) -> list[Callable[..., Any]]:
    """Return torchvision's functions that build networks."""
    if not _below(home, ("torchvision.models",)):
        return []
    models = import_module("torchvision.models")
    return [models.get_model_builder(name) for name in models.list_models()]


def _returns(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None


def named(path: str) -> Any:
    """Return the object at a dotted path.

    Raises:
        ImportError: The path names nothing.
    """
    if not is_path(path):
        raise ImportError(f"there is no {path}")
    home, _, name = path.rpartition(".")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if not f"{home}.".startswith(f"{error.name}."):
            raise
        return getattr(named(home), name)
    except AttributeError as error:
        raise ImportError(f"there is no {path}") from error


def mapping_of(value: Any) -> Any:
    """Return a parser's namespace as a mapping, and any other value as it is."""
    return vars(value) if type(value).__name__ == "Namespace" else value


def is_path(text: str) -> bool:
    """Return ``True`` for text that has the form of a dotted path."""
    return "." in text and all(part.isidentifier() for part in text.split("."))


def _reads_otherwise(text: str) -> bool:
    """Return ``True`` if a parser reads a text as a mapping, a list or another text."""
    try:
        events = yaml.parse(text, yaml.SafeLoader)
        first = next((event for event in events if isinstance(event, yaml.NodeEvent)), None)
    except yaml.YAMLError:
        return False
    other = isinstance(first, yaml.ScalarEvent) and first.value != text
    return other or isinstance(first, yaml.CollectionStartEvent)


def is_default(value: Any, default: Any) -> bool:
    """Return ``True`` for an argument's default, or the path of one that is a function."""
    if value is default is None:
        return True
    given = (value, default)
    paths = [one.replace(*BUILTINS) if isinstance(one, str) else _home(one) for one in given]
    if isinstance(default, str) or isinstance(value, str):
        return is_path(paths[0]) and paths[0] == paths[1]
    return callable(value) and repr(value) == repr(default)


def _below(path: str, homes: Iterable[str]) -> bool:
    return any(f"{path}.".startswith(f"{home}.") for home in homes)


def is_listed(path: str) -> bool:
    """Return ``True`` for a path in :data:`LISTED` or in an installed plug-in."""
    # Plug-ins come last, as finding them reads all installed packages.
    return _below(path, LISTED) or _below(path, _plugins())


def _plugins() -> list[str]:
    """Return the packages of the installed plug-ins."""
    return [point.module.partition(".")[0] for point in plugins.installed()]
