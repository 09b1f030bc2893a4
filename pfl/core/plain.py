"""Objects as plain values, as a configuration would describe them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pfl.core.client import ClientModule
from pfl.core.per_client import Variants

# Longer lists are given by their length.
_LISTED = 100


def plain_value(value: Any) -> Any:  # noqa: ANN401
    """Return a value as in a configuration: an object as its class and arguments."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path | torch.dtype):
        return str(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence | set):
        return [*map(plain_value, value)] if len(value) <= _LISTED else f"{len(value)} items"
    named = value if hasattr(value, "__qualname__") else type(value)
    described = {"class_path": f"{named.__module__}.{named.__qualname__}"}
    arguments = {name: plain_value(item) for name, item in _arguments(value).items()}
    return {**described, "init_args": arguments} if arguments else described


def spelled(value: object) -> str:
    """Write a configuration's value as Python: a class as a call, without null arguments."""
    if not isinstance(value, Mapping) or "class_path" not in value:
        return str(value)
    items = value.get("init_args", {}).items()
    arguments = [f"{key}={spelled(item)}" for key, item in items if item is not None]
    return f"{value['class_path'].rpartition('.')[2]}({', '.join(arguments)})"


def _arguments(value: object) -> Mapping[str, Any]:
    """Return the arguments of an object, where they are known."""
    if is_dataclass(value):
        return {
            item.metadata.get("argument", item.name): getattr(value, item.name)
            for item in fields(value)
        }
    if isinstance(value, ClientModule):
        objects = {name: getattr(value, name) for name in value.objects if hasattr(value, name)}
        # A factory hides its arguments, so it is called.
        own = value.net_optimizes
        optimizer = None if own else value.optimizer(value.parameters())
        return {**value.hparams, **objects, "optimizer": optimizer}
    if isinstance(value, Optimizer):
        return value.defaults
    if isinstance(value, Variants):
        return {"nets": value.nets, "by": value.by}
    if isinstance(value, nn.Module):
        entries = [(name, list(item.shape)) for name, item in value.state_dict().items()]
        text = f"{value} {entries}"
        return {
            "parameters": sum(item.numel() for item in value.parameters()),
            "structure": hashlib.blake2b(text.encode(), digest_size=6).hexdigest(),
        }
    arguments: Mapping[str, Any] = getattr(value, "given", {})
    return arguments
