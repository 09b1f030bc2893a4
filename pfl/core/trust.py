"""Checks of the objects that a configuration or an exported model names, before any is called.

Plain values name an object as ``{"class_path": ..., "init_args": {...}}``, or by its dotted path
alone. An object is called only if it fits the type declared for its place: a class must be a
subclass of that type, and a function must be annotated to return it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import IO, TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from lightning import LightningModule
from lightning.pytorch.core.saving import CHECKPOINT_PAST_HPARAMS_KEYS

from pfl.core import plugins, tensor_file

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

# Modules whose objects a file from somebody else may name.
TRUSTED = (
    *("pfl", "lightning_modules", "datamodules"),
    *("torch.nn", "torch.optim", "torchmetrics", "torchvision.models"),
)
# Types of plain values: where only these are declared, no object may be named.
_PLAIN = (object, type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set)
# Types whose arguments are the types of their values.
_CONTAINERS = (list, tuple, set, dict, Sequence, Mapping)

Admit = Callable[[str], None]


class TrustError(ValueError):
    """A named object must not be called.

    Args:
        what: What is wrong.
        keys: Keys of the name, without ``init_args``.
    """

    def __init__(self, what: str, keys: Sequence[str] = ()) -> None:
        super().__init__(f"{'.'.join(keys)}: {what}" if keys else what)
        self.what = what
        self.keys = tuple(keys)


def check_calls(
    value: Any,  # noqa: ANN401
    hint: Any,  # noqa: ANN401
    keys: Sequence[str] = (),
    admit: Admit = lambda path: None,
) -> None:
    """Refuse every object named in a value that does not fit the type declared for its place.

    Args:
        value: A part of a configuration.
        hint: The type declared for it.
        keys: Keys of the part.
        admit: Called with each dotted path before it is imported, and with the path at which the
            object is defined; raises :class:`TrustError` to refuse it.

    Raises:
        TrustError: An object has the wrong type, or a number is NaN or must be finite.
        ImportError: A path names nothing.
    """
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise TrustError("expected a number, got nan", keys)
        # Optimisers accept infinity, but then the first step is not finite.
        if "optimizer" in keys:
            raise TrustError(f"expected a finite number, got {value}", keys)
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_calls(item, hint, (*keys, str(number)), admit)
        return
    kinds = tuple(_classes(hint))
    given = _plain(value)
    if isinstance(given, Mapping):
        path = given.get("class_path")
        if path is None and len(kinds) != 1:
            for key, item in given.items():
                check_calls(item, hint, (*keys, str(key)), admit)
            return
        if not kinds and _takes_mappings(hint):
            # The code that declares a mapping builds the object itself, and checks it.
            return
        made = kinds[0] if path is None else _checked(str(path), kinds, keys, admit)
        # A data class is given without its path.
        arguments = given if path is None else _plain(given.get("init_args") or {})
        types = declared(made)
        for name, item in arguments.items():
            check_calls(item, types.get(name), (*keys, name), admit)
    elif kinds and isinstance(value, str) and _is_path(value):
        # Where any text is allowed too, the parser decides whether it is a class.
        admit(value) if str in get_args(hint) else _checked(value, kinds, keys, admit)
    elif kinds and inspect.isroutine(value):
        # The parser has already replaced a path by its function.
        _check_type(value, f"{value.__module__}.{value.__qualname__}", kinds, keys)


def check_nulls(
    values: Mapping[str, Any],
    types: Mapping[str, Any],
    nulls: Iterable[Sequence[str]],
    optional: Callable[[Any], Container[str]] = lambda kind: (),
) -> None:
    """Refuse null for an argument that needs a value.

    Args:
        values: A configuration by dotted keys.
        types: Declared types of the values, by the same keys.
        nulls: Keys whose value is written as null, without ``init_args``.
        optional: Returns the arguments of a class that may be null whatever their declared type.

    Raises:
        TrustError: An argument that needs a value is null.
    """
    for keys in nulls:
        name = ".".join(keys)
        top = next((key for key in types if f"{name}.".startswith(f"{key}.")), None)
        if top is None:
            if any(key.startswith(f"{name}.") for key in types):
                raise TrustError("expected keys and values, got null", keys)
            continue
        hint, value = types[top], values.get(top)
        for key in keys[top.count(".") + 1 :]:
            given = _plain(value)
            if not isinstance(given, Mapping) or "class_path" not in given:
                break
            kind = _named(str(given["class_path"]))
            hint = None if key in optional(kind) else declared(kind).get(key)
            value = _plain(given.get("init_args") or {}).get(key)
        else:
            if value is None and not _optional(hint):
                kinds = [hint] if inspect.isclass(hint) else [*_classes(hint)]
                names = " or ".join(kind.__name__ for kind in kinds) or "a value"
                raise TrustError(f"expected {names}, got null", keys)


def _optional(hint: Any) -> bool:  # noqa: ANN401
    return hint in (None, Any, object) or type(None) in get_args(hint) or None in get_args(hint)


def check_export(
    source: str | Path | IO[Any], kind: type, trust: Sequence[str], given: Container[str] = ()
) -> None:
    """Refuse an exported model that names an untrusted object.

    Args:
        source: The file, of ``pfl export`` or of a Trainer.
        kind: The class to build.
        trust: Dotted paths of modules and objects that the file may name, besides :data:`TRUSTED`
            and installed plug-ins.
        given: Arguments that the caller gives and the file does not decide.

    Raises:
        TrustError: An object is not trusted, or does not fit the type declared for its place.
        DamagedError: The file was changed after it was written.
        OSError: The file cannot be read.
    """
    known = (*TRUSTED, *_plugins(), *trust)
    arguments = {k: v for k, v in _exported(source).items() if k not in given}
    # Without an instantiator, the class gets plain values as they are; no object is built.
    if arguments.pop("_instantiator", None) is None:
        return

    def admit(path: str) -> None:
        if not any(f"{path}.".startswith(f"{name}.") for name in known):
            raise TrustError(
                f"{source} names {path}, which belongs neither to this project nor to "
                f"{', '.join(TRUSTED[3:])} or a plug-in; if you trust it, pass trust=[{path!r}]"
            )

    try:
        if (path := arguments.pop("_class_path", None)) is not None:
            kind = _checked(str(path), (kind,), ("_class_path",), admit)
        types = declared(kind)
        for name, item in arguments.items():
            check_calls(item, types.get(name), (name,), admit)
    except ImportError as error:
        raise TrustError(f"{source}: {error}") from error


def _exported(source: str | Path | IO[Any]) -> dict[str, Any]:
    """Return the arguments of the class in a file, from every key that Lightning reads."""
    if isinstance(source, str | Path):
        content = tensor_file.read(Path(source), mapped=True)
    else:
        content = torch.load(source, map_location="cpu", weights_only=True)
        source.seek(0)
    if not isinstance(content, dict):
        raise tensor_file.DamagedError(f"{source} holds no module")
    found: dict[str, Any] = {}
    for key in (*CHECKPOINT_PAST_HPARAMS_KEYS, LightningModule.CHECKPOINT_HYPER_PARAMS_KEY):
        found |= content.get(key) or {}
    return found


def untrusted(content: Any) -> list[str]:  # noqa: ANN401
    """Return the class paths that :func:`check_export` admits only if they are in ``trust``."""
    if isinstance(content, Mapping):
        path = content.get("class_path")
        own = [path] if isinstance(path, str) and not path.startswith(_prefixes()) else []
        return own + [name for item in content.values() for name in untrusted(item)]
    if isinstance(content, list | tuple):
        return [name for item in content for name in untrusted(item)]
    return []


@cache
def declared(kind: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the declared types of the arguments of a class or a function.

    They include arguments that it passes on to its bases or to a function.
    """
    # Imported here because only code that builds objects from plain values needs it.
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    add = parser.add_class_arguments if inspect.isclass(kind) else parser.add_function_arguments
    names = add(kind, fail_untyped=False)
    types = types_of(parser)
    return {name: types.get(name) for name in names}


def types_of(parser: ArgumentParser) -> dict[str, Any]:
    """Return the declared types of a parser's arguments, where it knows them."""
    kinds = ((action.dest, getattr(action, "_typehint", None)) for action in parser._actions)
    return {name: kind for name, kind in kinds if kind is not None and not name.endswith(".help")}


def _checked(path: str, kinds: tuple[type, ...], keys: Sequence[str], admit: Admit) -> Any:  # noqa: ANN401
    """Return the object at a path, if it fits a place that declares ``kinds``."""
    admit(path)
    found = _named(path)
    if inspect.isclass(found) or inspect.isroutine(found):
        # torch.nn.modules.module.warnings.warn does not belong to torch.nn.
        admit(f"{found.__module__}.{found.__qualname__}")
    if not kinds:
        raise TrustError(f"{path} is not allowed here: the argument declares no class", keys)
    _check_type(found, path, kinds, keys)
    return found


def _check_type(
    found: Any,  # noqa: ANN401
    path: str,
    kinds: tuple[type, ...],
    keys: Sequence[str],
) -> None:
    names = " or ".join(kind.__name__ for kind in kinds)
    if inspect.isclass(found):
        if not any(kind in found.__mro__ for kind in kinds):
            raise TrustError(f"{path} is not a subclass of {names}", keys)
    elif callable(found):
        returned = tuple(_classes(_returns(found)))
        if not returned or not all(any(k in one.__mro__ for k in kinds) for one in returned):
            raise TrustError(f"{path} is not annotated to return {names}", keys)
    else:
        raise TrustError(f"{path} is neither a class nor a function", keys)


def _returns(function: Callable[..., Any]) -> Any:  # noqa: ANN401
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None


def _classes(hint: Any) -> Iterator[type]:  # noqa: ANN401
    """Yield the classes whose objects a place can hold; for a factory, those that it returns."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType, *_CONTAINERS):
        for item in inner:
            yield from _classes(item)
    elif Callable in (origin, hint):
        yield from _classes(inner[-1] if inner else None)
    elif origin is not None and origin is not Literal:
        yield from _classes(origin)
    elif inspect.isclass(hint) and hint not in _PLAIN and hint is not Any:
        yield hint


def _takes_mappings(hint: Any) -> bool:  # noqa: ANN401
    """Return ``True`` if a place declares a mapping, or a container of mappings."""
    origin = get_origin(hint)
    if origin in (dict, Mapping):
        return True
    return origin in (Union, UnionType, *_CONTAINERS) and any(map(_takes_mappings, get_args(hint)))


def _named(path: str) -> Any:  # noqa: ANN401
    home, _, name = path.rpartition(".")
    if not home:
        raise ImportError(f"there is no {path}")
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if not f"{home}.".startswith(f"{error.name}."):
            raise
        return getattr(_named(home), name)
    except AttributeError as error:
        raise ImportError(f"there is no {path}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a parser's namespace as a mapping."""
    return vars(value) if type(value).__name__ == "Namespace" else value


def _is_path(text: str) -> bool:
    return "." in text and all(part.isidentifier() for part in text.split("."))


def _prefixes() -> tuple[str, ...]:
    return tuple(f"{name}." for name in (*TRUSTED, *_plugins()))


def _plugins() -> list[str]:
    """Return the packages of the installed plug-ins."""
    return [point.module.partition(".")[0] for point in plugins.installed()]
