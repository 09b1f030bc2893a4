"""The settings on which server and site must agree, as comparable texts."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from pfl.core.client import ClientModule
from pfl.core.plain import plain_value
from pfl.core.state import digest
from pfl.training.contexts import Contexts

_SHOWN = 60  # characters of a value in a message
_NAMED = 4  # differences that are named
_OF_DATA = ("outputs", "batch_size", "eval_batch_size", "drop_last", "shuffle")


def facts(contexts: Contexts) -> dict[str, str]:
    """Return everything besides its data that a client's numbers depend on."""
    module, data = contexts.module, contexts.data
    precision = contexts.fabric.strategy.precision.precision
    return {
        "pfl": metadata.version("pfl-lightning"),
        **_flat(plain_value(module), "model"),
        "model's source": _source(type(module)),
        "initial values": digest(contexts.initial_values),
        "frozen weights": contexts.constants,
        "trainable": " ".join(sorted(set().union(*contexts.trainable))),
        "precision": str(precision),
        "gradient_clip_val": json.dumps(contexts.gradient_clip_val),
        "data.task": repr(data.task),
        "data.metrics": json.dumps(plain_value(data.metrics), sort_keys=True),
        **{f"data.{name}": str(getattr(data, name)) for name in _OF_DATA},
    }


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return the differences, each with both values; empty if there are none."""
    apart = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    named = [
        f"{key} {_short(theirs.get(key))} (here {_short(ours.get(key))})" for key in apart[:_NAMED]
    ]
    more = [f"{len(apart) - _NAMED} more"] if len(apart) > _NAMED else []
    return "; ".join(named + more)


def _flat(value: Any, key: str) -> dict[str, str]:  # noqa: ANN401
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for name, item in value.items():
            # As in a configuration: the class under the key of its object.
            inner = {"class_path": key}.get(name, key if name == "init_args" else f"{key}.{name}")
            flat |= _flat(item, inner)
        return flat
    return {key: json.dumps(value)}


def _source(method: type[ClientModule]) -> str:
    """Return a hash of the source of a method and its base methods."""
    hashed = hashlib.sha256()
    for base in method.__mro__[: method.__mro__.index(ClientModule)]:
        try:
            hashed.update(inspect.getsource(base).encode())
        except (OSError, TypeError):  # Defined interactively, without a file.
            hashed.update(base.__qualname__.encode())
    return hashed.hexdigest()[:16]


def _short(value: str | None) -> str:
    return "nothing" if value is None else value[:_SHOWN]
