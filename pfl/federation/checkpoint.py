"""Checkpoint files of runs: dictionaries of tensors and plain values, without code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pfl.core.server import ServerState
from pfl.disk import tensor_file

FORMAT = "pfl-checkpoint-1"
StateT = TypeVar("StateT", bound=ServerState)


class CheckpointError(ValueError):
    """A file cannot be used to resume this run."""


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        OSError: The file cannot be written.
    """
    tensor_file.write(path, {"format": FORMAT, **content})


def load(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Return a checkpoint's content.

    Args:
        path: The file.
        mapped: Whether what clients keep stays in the file until it is used; see
            :func:`pfl.disk.tensor_file.read`.

    Raises:
        CheckpointError: The file is missing, damaged or not a checkpoint of this program.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = tensor_file.read(path, mapped)
    except tensor_file.DamagedError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this program ({FORMAT})")
    if not mapped:
        return content
    return {k: v if k == "kept" else move(v, "cpu", copy=True) for k, v in content.items()}


def pack(state: ServerState) -> dict[str, Any]:
    """Return a server's state as plain values and CPU tensors."""
    return {item.name: move(getattr(state, item.name), "cpu") for item in fields(state)}


def unpack(initial: StateT, content: Mapping[str, Any], device: torch.device | str) -> StateT:
    """Return the packed state as an object like ``initial``."""
    return replace(initial, **{name: move(value, device) for name, value in content.items()})


def move(value: Any, device: torch.device | str, copy: bool = False) -> Any:  # noqa: ANN401
    """Move every tensor in nested dicts, lists and tuples; ``copy`` also those there already."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=copy)
    if isinstance(value, Mapping):
        # Of any kind: a file may hold plain dictionaries only.
        return {key: move(item, device, copy) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(move(item, device, copy) for item in value)
    return value
