"""One walk over the settings of a command line, which checks keys, classes and values in place.

Settings are visited in the order in which they apply. Each key is an argument of the class that was
named last above it, so its type is known, and an error names the file and line, or the flag. Where
classes come from is a :class:`Lookup`: their source, before torch is imported (:class:`Sources`),
then the classes themselves (:class:`pfl.cli.imported.Imported`), which tell what no source does.
"""

from __future__ import annotations

import inspect
from argparse import ArgumentError
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import yaml

from pfl.callbacks import foreign
from pfl.cli.commands import Command, Needs
from pfl.cli.explain import Keys, UsageError, UserSetting, UserSettings, message_at, settings_of
from pfl.core.checks import needs_public
from pfl.core.ranges import Range, ranges_in
from pfl.disk.nearest import hint, nearest
from pfl.disk.yaml_text import AmbiguousError, YamlError, ambiguous, composed, loaded
from pfl.engines import named
from pfl.imports import hints, plugins, stubs
from pfl.imports.plugins import PACKAGES
from pfl.imports.trust import is_path


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
LOOP = "pfl.loop.FederatedLoop"
SAMPLER = "pfl.federation.sampling.UniformSampler"  # if no other is named
METHOD = "pfl.core.client.ClientModule"
DATA = "datamodules.base.FederatedDataModule"
NETWORK = "torch.nn.modules.module.Module"
# Types whose classes in torch may be given by name: their package, and the folder of their files.
_OF_TORCH = {
    "Module": ("torch.nn", "nn/modules"),
    "Optimizer": ("torch.optim", "optim"),
}
# Packages that contain no methods and no data.
_LIBRARIES = ("torch.", "torchvision.", "torchmetrics.", "lightning.")
CLASSLESS = "no class is given: name it as class_path, and its arguments under init_args"
# Flags that take no value.
_SWITCHES = ("help", "print_config")


@dataclass(frozen=True)
class Kind:
    """What takes arguments: a class, a function, or the top of a configuration.

    Attributes:
        name: Its name.
        types: The declared types of its arguments; ``None`` where none is declared.
        needed: The arguments that must be given, in order.
        filled: Those that are filled in later.
        ranges: The ranges of numbers that stand beside types.
    """

    name: str
    types: Mapping[str, Any]
    needed: Sequence[str] = ()
    filled: Collection[str] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def may_be_null(self, name: str) -> bool:
        """Return ``True`` if null is a value of an argument, which may then be left out."""
        return self.types[name] is not None and hints.takes_null(self.types[name])


class Lookup(Protocol):
    """Where classes come from."""

    def base(self, path: str) -> Any:
        """Return the class at the path of one of this project's."""

    def find(self, name: str, hint: Any) -> Any:
        """Return the class or function of a name; ``None`` if it cannot be told.

        Raises:
            LookupError: There is none, or it may not be used.
        """

    def arguments(self, made: Any) -> Mapping[str, Parameter] | None:
        """Return the arguments of a class or function; ``None`` if they cannot be told."""


class Walk:
    """The walk.

    Args:
        settings: All settings.
        command: The command that reads them.
        lookup: Where classes come from.
    """

    def __init__(self, settings: UserSettings, command: Command, lookup: Lookup) -> None:
        # A text that describes settings adds them while it is visited.
        self._given = [*settings]
        self._lookup = lookup
        self._needs = command.configuration or Needs()
        given = {name.lstrip("-"): how for name, how in command.typed_arguments.items()}
        self._switches = {*_SWITCHES, *(name for name, how in given.items() if "action" in how)}
        top = {
            **dict.fromkeys(("config", "print_config", "help")),
            **{name: _type_of_flag(how) for name, how in given.items()},
            **{"seed": int, "loop": lookup.base(LOOP)},
            **{"model": lookup.base(METHOD) | None, "data": lookup.base(DATA) | None},
        }
        # What takes the arguments below a key; ``None`` if that cannot be told.
        self._kinds: dict[Keys, Kind | None] = {(): Kind("", top)}
        self._enter(("loop",), lookup.base(LOOP))
        self._enter(("loop", "sampler"), lookup.base(SAMPLER))

    def check(self) -> None:
        """Check all settings.

        Raises:
            UsageError: A key or a class does not exist, a value does not have its type, or one is
                missing.
        """
        for item in [*self._given]:
            self._visit(item)
        for keys, kind in self._kinds.items():
            if kind is not None and keys:
                self._check_needed(keys, kind)

    def _visit(self, item: UserSetting) -> None:
        parent, name = item.keys[:-1], item.keys[-1]
        _check_callback(item)
        if item.keys[0] not in self._types(()):
            section = replace(item, keys=item.keys[:1])
            raise self._unknown(section, f"there is no key {item.keys[0]!r}", self._types(()))
        if item.keys == ("loop", "seed"):
            raise item.error("seed is a top-level key, beside loop")
        if name not in ("class_path", "help") or not parent:
            self._check_argument(item, self._kinds.get(parent) or self._implied(parent))
        elif item.text is not None:
            # A word, such as the name of an engine, is no class_path.
            self._name(replace(item, keys=parent), hints.objects(self._hint(parent)))

    def _check_argument(self, item: UserSetting, kind: Kind | None) -> None:
        """Check that a class has the argument that a setting gives, and its value."""
        parent, name = item.keys[:-1], item.keys[-1]
        if kind is not None and name not in kind.types and not item.extra:
            raise self._unknown(item, f"{kind.name} has no argument {name!r}", kind.types)
        if len(parent) == 1 and parent not in self._kinds and not name.isdigit():
            raise item.error(f"{parent[0]} has no class{hint(name, ('class_path', 'init_args'))}")
        declared = self._hint(item.keys)
        if item.place.endswith("+"):
            declared = hints.values_of(declared, hints.LISTS)
        self._check_value(item, declared)
        if kind is not None and name in kind.ranges and hints.is_plain(declared):
            try:
                kind.ranges[name].check(name, _read(item, declared))
            except ValueError as error:
                raise item.error(str(error)) from error

    def _types(self, keys: Keys) -> Mapping[str, Any]:
        kind = self._kinds[keys]
        return {} if kind is None else kind.types

    def _hint(self, keys: Keys) -> Any:
        """Return the declared type of the value at keys; ``None`` if it is not known."""
        parent, name = keys[:-1], keys[-1]
        if parent in self._kinds:
            return self._types(parent).get(name)
        containers = hints.LISTS if name.isdigit() else hints.MAPPINGS
        return hints.values_of(self._hint(parent), containers)

    def _implied(self, keys: Keys) -> Kind | None:
        """Enter a dataclass, which is given without its name."""
        if keys not in self._kinds and keys:
            classes = [*hints.classes(self._hint(keys))]
            if len(classes) == 1 and hints.is_record(classes[0]):
                self._enter(keys, classes[0])
        return self._kinds.get(keys)

    def _name(self, item: UserSetting, declared: Any) -> None:
        """Enter the class that a setting names for its key."""
        name = str(item.text)
        if name == "null":
            return
        try:
            engine = name in hints.all_words(declared)
            made = self._lookup.find(named.path_of(name) if engine else name, declared)
            if made is not None:
                check_fits(made, name, declared)
        except LookupError as error:
            raise item.error(str(error)) from error
        self._enter(item.keys, made, declared)

    def _enter(self, keys: Keys, made: Any, declared: Any = None) -> None:
        found = None if made is None else self._lookup.arguments(made)
        if found is None:
            self._kinds[keys] = None
            return
        # What is needed in the place of a class that is not known cannot be told.
        known = hints.is_known(declared) or made is self._lookup.base(LOOP)
        kind = _kind(made.__name__, found, self._filled(made, found))
        needed = kind.needed[_given_by_caller(declared) :] if known else ()
        # Arguments that the class before it had, and this one has not, are dropped.
        for inner in [one for one in self._kinds if one[: len(keys)] == keys and one != keys]:
            if inner[len(keys)] not in kind.types:
                del self._kinds[inner]
        self._kinds[keys] = replace(kind, needed=[n for n in needed if not kind.may_be_null(n)])

    def _filled(self, made: Any, arguments: Mapping[str, Parameter]) -> list[str]:
        """Return the arguments of a class that are filled in later."""
        method = inspect.isclass(made) and self._lookup.base(METHOD) in made.__mro__
        network = inspect.isclass(made) and self._lookup.base(NETWORK) in made.__mro__
        names = [*FROM_DATA] * (method or network) + ["net"] * (method and not self._needs.data)
        return [name for name in names if name in arguments and arguments[name].default is not None]

    def _check_value(self, item: UserSetting, declared: Any) -> None:
        """Check a value against the type declared for it."""
        if item.text is None and item.node is None:
            if item.keys[0] not in self._switches:
                raise item.error("expected a value")
        elif not hints.is_known(declared):
            if isinstance(item.value, str):
                self._unpacked(item, declared)
        elif item.text == "null" if item.node is None else item.value is None:
            if not hints.takes_null(declared):
                raise item.error(f"expected {hints.said(declared)}, got null")
        elif hints.is_plain(declared):
            _check_plain(item, declared)
        elif isinstance(item.value, str):
            self._check_text(item, declared)
        else:
            self._check_content(item, declared)

    def _check_content(self, item: UserSetting, declared: Any) -> None:
        """Check a value that is neither plain nor text; what is in it follows by its own keys."""
        value, classes = item.value, [*hints.classes(declared)]
        if isinstance(value, Mapping) and (classes or hints.takes(declared, hints.MAPPINGS)):
            spelt = {"class_path", "init_args", "dict_kwargs"} & {*value}
            nameless = hints.takes(declared, hints.MAPPINGS) or any(map(hints.is_record, classes))
            if not (nameless or spelt or item.keys in self._kinds):
                raise item.error(CLASSLESS)
        elif not (isinstance(value, list) and hints.takes(declared, hints.LISTS)):
            plain = hints.plain_part(declared)
            if plain is None or not _fits(item, plain):
                raise item.error(_expected(declared, item.text or str(value)[:60]))

    def _check_text(self, item: UserSetting, declared: Any) -> None:
        """Check a text in the place of an object: a word, the name of a class, or its content."""
        text, plain = str(item.text), hints.plain_part(declared)
        takes_text = hints.takes(plain, (str,))
        if (not takes_text or text.startswith(("{", "["))) and self._unpacked(item, declared):
            return
        place = hints.alone(declared)
        called = hints.takes(place, hints.CALLABLES) and is_path(text)
        named_here = any(hints.classes(place)) and (text.isidentifier() or is_path(text))
        if text in hints.all_words(declared):
            self._name(item, declared)
        elif (named_here or called) and not _is_text(item, plain):
            try:
                self._name(item, declared)
            except UsageError:
                # The name of a file has a dot, too.
                if not (takes_text and "." in text):
                    raise
        elif plain is None or not _fits(item, plain):
            raise item.error(_expected(declared, text))

    def _unpacked(self, item: UserSetting, declared: Any) -> bool:
        """Visit what a text describes, as the parser reads it; ``False`` for a plain one."""
        node = _composed(item)
        if not isinstance(node, yaml.CollectionNode):
            return False
        if hints.is_known(declared):
            self._check_content(replace(item, text=None, node=node), declared)
        for inner in item.inner(node):
            self._given.append(inner)
            self._visit(inner)
        return True

    def _check_needed(self, keys: Keys, kind: Kind) -> None:
        """Check that the arguments of a class are given which it needs."""
        given = {item.keys[len(keys)] for item in self._given if _is_below(item, keys)}
        needed = [name for name in kind.needed if name not in kind.filled]
        if untyped := [name for name in needed if kind.types[name] is None]:
            what = f"declare the type of the argument {untyped[0]!r} of {kind.name}"
            raise self._at(keys, what)
        missing = [name for name in needed if name not in given]
        if missing:
            what = f"the following arguments of {kind.name} are required: {', '.join(missing)}"
            raise self._at(keys, what)
        if "public_samples" in kind.filled and "public_samples" not in given:
            self._check_public(keys, kind.name)

    def _check_public(self, keys: Keys, method: str) -> None:
        """Check that there are public data, if the data are of a class that can have some."""
        data = self._kinds.get(("data",))
        given = any(item.keys[:2] == ("data", "public") for item in self._given)
        if data is not None and "public" in data.types and not given:
            raise self._at(keys, needs_public(method))

    def _at(self, keys: Keys, what: str) -> UsageError:
        there = settings_of(self._given, keys)
        return UsageError(message_at(there[-1].place if there else "", keys, what))

    def _unknown(self, item: UserSetting, what: str, choices: Iterable[str]) -> UsageError:
        """Return an error about a key, with its right place, the nearest key or all keys."""
        name = item.keys[-1]
        kinds = [(keys, kind) for keys, kind in self._kinds.items() if keys and kind]
        homes = {(*keys, name) for keys, kind in kinds if name in kind.types}
        # For a class of unknown arguments: the arguments set before.
        homes |= {one.keys for one in self._given if one.keys[-1] == name and one is not item}
        homes -= {item.keys}
        near = " or ".join(sorted(".".join(keys) for keys in homes))
        return item.error(
            what + (f"; did you mean {near}?" if near else hint(name, sorted(choices)))
        )


class Sources:
    """Classes as their source declares them.

    Args:
        settings: All settings.
    """

    def __init__(self, settings: UserSettings) -> None:
        paths = [item.text for item in settings if item.text and is_path(item.text)]
        others = [path for path in paths if not path.startswith((*PACKAGES, *_LIBRARIES))]
        # Other packages and the user's modules may define further classes.
        self._closed = not (others or plugins.installed())

    def base(self, path: str) -> Any:
        """Return the stand-in for one of this project's classes."""
        return stubs.resolved(path)

    def find(self, name: str, declared: Any) -> Any:
        """Return the stand-in for a class; ``None`` if its source is not read.

        Raises:
            LookupError: There is no such class.
        """
        bases = [*hints.classes(declared)]
        if "." in name:
            if stubs.lacks(name):
                raise LookupError(no_class(name, declared, stubs.names_of(name), stubs.stub))
            return stubs.stub(name)
        if not bases:
            return None
        made = self._first(name, bases)
        if made is None and self._closed and all(map(stubs.is_stub, bases)):
            names = {*stubs.named(), *self._of_torch(bases)}
            raise LookupError(no_class(name, declared, names, lambda one: self._first(one, bases)))
        return made

    def _first(self, name: str, bases: Sequence[type]) -> type | None:
        """Return the class of a short name, one that fits its place before any other."""
        found = [one for one in map(stubs.stub, self._paths(name, bases)) if one is not None]
        found.sort(key=lambda one: not any(base in one.__mro__ for base in bases))
        return next(iter(found), None)

    def _paths(self, name: str, bases: Sequence[type]) -> list[str]:
        home = self._of_torch(bases).get(name)
        return [*stubs.named().get(name, ()), *([f"{home}.{name}"] if home else [])]

    def _of_torch(self, bases: Sequence[type]) -> dict[str, str]:
        """Return the packages of torch's classes of some types by name."""
        places = [_OF_TORCH[base.__name__] for base in bases if base.__name__ in _OF_TORCH]
        return {name: home for home, folder in places for name in stubs.in_folder(folder)}

    def arguments(self, made: Any) -> Mapping[str, Parameter] | None:
        """Return the arguments of a stand-in."""
        return stubs.parameters(made)


def no_class(name: str, declared: Any, names: Iterable[str], find: Callable[[str], Any]) -> str:
    """Return the message about a class that does not exist, with the nearest one of its place."""
    words = [str(word) for word in hints.all_words(declared)]
    what, plain = f"there is no class {name!r}", hints.plain_part(declared)
    if plain is not None and not words and not hints.takes(plain, (str,)):
        what = f"expected {hints.said(declared)}, got {name}"
    if words:
        what = f"{name!r} is not one of {', '.join(words)}, nor a class"
    known, bases = [*names], [*hints.classes(declared)]
    close = [one for one in known if one.lower() == name.lower()]
    close += get_close_matches(name, known, n=8)
    lines = [(one, getattr(find(one), "__mro__", ())) for one in dict.fromkeys(close)]
    fitting = [one for one, line in lines if any(base in line for base in bases or line)]
    return what + (nearest(name, words) or nearest(name, fitting))


def check_fits(made: Any, name: str, declared: Any) -> None:
    """Check that a class is of the type declared for its place.

    Functions, and what the source of a class does not tell, are left to later checks.

    Raises:
        LookupError: It is not.
    """
    bases = [*hints.classes(declared)]
    if not bases or not inspect.isclass(made):
        return
    if any(base in made.__mro__ for base in bases):
        if inspect.isabstract(made):
            raise LookupError(f"{name} is a base class: name one that is derived from it")
        return
    ours = all(base.__module__.startswith(PACKAGES) for base in bases)
    read = (not stubs.is_opaque(made) or ours) and not any(map(stubs.is_opaque, bases))
    # No class of a library is derived from one of ours.
    if read or (ours and name.startswith(_LIBRARIES)):
        names = " or ".join(base.__name__ for base in bases)
        raise LookupError(f"{name} is not a subclass of {names}")


def _check_callback(item: UserSetting) -> None:
    """Reject a callback of Lightning, with or without its module."""
    name = str(item.text)
    bare = name in foreign.REPLACEMENTS and name not in stubs.named()
    lightnings = bare or name.startswith(("lightning.", "pytorch_lightning."))
    if item.keys[:2] == ("loop", "callbacks") and lightnings:
        raise item.error(foreign.refusal(name.rpartition(".")[2]))


def _kind(name: str, found: Mapping[str, Parameter], filled: Collection[str]) -> Kind:
    """Return what a class takes that has some arguments, some of which are filled in later."""
    types = {name: _type_of(one) for name, one in found.items()}
    types |= {name: types[name] | None for name in filled}
    needed = [name for name, one in found.items() if one.default is one.empty]
    several = {name: [*ranges_in(one.annotation)] for name, one in found.items()}
    ranges = {name: those[0] for name, those in several.items() if those}
    return Kind(name, types, needed, filled, ranges)


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


def _is_below(item: UserSetting, keys: Keys) -> bool:
    """Return ``True`` if a setting is of an argument of the class at keys, or within one."""
    return item.keys[: len(keys)] == keys and len(item.keys) > len(keys) and item.text != "null"


def _is_text(item: UserSetting, plain: Any) -> bool:
    """Return ``True`` for a text that is one of a plain type, or names a file where text may."""
    if hints.takes(plain, (str,)):
        return Path(str(item.text)).exists()
    return plain is not None and _fits(item, plain)


def _composed(item: UserSetting) -> yaml.Node | None:
    try:
        return composed(str(item.text))
    except AmbiguousError as error:
        raise item.error(str(error)) from error
    except YamlError:
        return None


def _check_plain(item: UserSetting, declared: Any) -> None:
    """Check a value that is no object against its type."""
    text = item.text
    if item.node is None and not hints.takes(declared, (str,)):
        _composed(item)
    if not _fits(item, declared):
        if item.node is None and (what := ambiguous(str(text))):
            raise item.error(what)
        raise item.error(_expected(declared, str(item.value)[:60] if text is None else text))


def _expected(declared: Any, text: str) -> str:
    words = [str(word) for word in hints.all_words(declared)]
    return f"expected {hints.said(declared)}, got {text}{nearest(text, words)}"


def _read(item: UserSetting, declared: Any) -> Any:
    """Return a value as the parser reads one of a plain type.

    Raises:
        ArgumentError: It is of another type.
    """
    parser = _reader(declared)
    if item.node is None:
        return parser.parse_args([f"--value={item.text}"]).value
    return parser.parse_object({"value": item.value}).value


def _fits(item: UserSetting, declared: Any) -> bool:
    """Return ``True`` if the parser reads a value as one of a plain type."""
    try:
        read = _read(item, declared)
    except ArgumentError:
        return False
    # The parser would also read ambiguous texts of numbers.
    return isinstance(read, str) or not (item.node is None and ambiguous(str(item.text)))


@cache
def _reader(declared: Any) -> Any:
    """Return a parser of one value."""
    from jsonargparse import ArgumentParser, set_loader

    set_loader("value", loaded, (yaml.YAMLError, YamlError))
    parser = ArgumentParser(exit_on_error=False, parser_mode="value")
    parser.add_argument("--value", type=declared)
    return parser
