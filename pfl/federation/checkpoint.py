"""Checkpoint files of runs: dictionaries of tensors and plain values, without code.

In the file (:mod:`pfl.disk.container`) JSON objects encode what JSON lacks: tensors, tuples,
ordered mappings, and numbers that are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl.core.types import State
from pfl.disk import container

FORMAT = "pfl-checkpoint-3"


class CheckpointError(ValueError):
    """A file cannot be used to resume this run."""


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: The file cannot be written.
        TypeError: A value cannot be stored.
    """
    tensors = State()
    container.write(path, _plain({"format": FORMAT, **content}, FORMAT, tensors), tensors)


def load(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content; what clients keep stays in the file until it is used.

    Raises:
        CheckpointError: The file is missing, damaged or not a checkpoint of this program.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = _restored(*container.read(path))
    except container.ContainerError as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} was written by another program ({error!r})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this program ({FORMAT})")
    return {k: v if k == "kept" else move(v, "cpu", copy=True) for k, v in content.items()}


def move(value: Any, device: torch.device | str, copy: bool = False) -> Any:  # noqa: ANN401
    """Move every tensor in nested dicts, lists and tuples; ``copy`` also those there already."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=copy)
    if isinstance(value, Mapping):
        # Any kind of mapping: a file may hold plain dictionaries only.
        return {key: move(item, device, copy) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(move(item, device, copy) for item in value)
    return value


def _plain(value: Any, path: str, tensors: State) -> Any:  # noqa: ANN401
    """Encode a value for JSON; add its tensors to ``tensors``, by their paths."""
    if isinstance(value, Tensor):
        name = path if path not in tensors else f"{path} {len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        # Pairs keep their order.
        return {"dict": [[k, _plain(v, f"{path}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        listed = [_plain(item, f"{path}/{n}", tensors) for n, item in enumerate(value)]
        return listed if isinstance(value, list) else {"tuple": listed}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{path}: a checkpoint cannot store a {type(value).__name__}")


def _restored(value: Any, tensors: State) -> Any:  # noqa: ANN401
    """Decode what :func:`_plain` encoded."""
    if isinstance(value, list):
        return [_restored(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((mark, inner),) = value.items()
    match mark:
        case "tensor":
            return tensors[inner]
        case "dict":
            return {key: _restored(item, tensors) for key, item in inner}
        case "tuple":
            return tuple(_restored(inner, tensors))
        case "float":
            return float(inner)
    raise ValueError(f"unknown mark {mark[:20]!r}")
