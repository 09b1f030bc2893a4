"""A check of null in a parsed configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from pfl.imports.hints import classes, declared
from pfl.imports.trust import TrustError, named, plain


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
            given = plain(value)
            if not isinstance(given, Mapping) or "class_path" not in given:
                break
            kind = named(str(given["class_path"]))
            hint = None if key in optional(kind) else declared(kind).get(key)
            value = plain(given.get("init_args") or {}).get(key)
        else:
            if value is None and not _optional(hint):
                # In Python 3.10, a type with arguments such as Callable[[A], B] is a class too.
                plain_class = inspect.isclass(hint) and get_origin(hint) is None
                kinds = [hint] if plain_class else [*classes(hint)]
                names = " or ".join(kind.__name__ for kind in kinds) or "a value"
                raise TrustError(f"expected {names}, got null", keys)


def _optional(hint: Any) -> bool:  # noqa: ANN401
    return hint in (None, Any, object) or type(None) in get_args(hint) or None in get_args(hint)
