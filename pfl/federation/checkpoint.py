"""Files that a run is resumed from: written whole or not at all, and holding no code.

A checkpoint is a dictionary of tensors and plain values; it loads with ``weights_only=True``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pfl.core.server import ServerState

FORMAT = "pfl-checkpoint-1"
StateT = TypeVar("StateT", bound=ServerState)


class CheckpointError(ValueError):
    """A file cannot be used to resume this run."""


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write atomically: a reader finds the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's content; its tensors are mapped from the file, and come in as they are read.

    Whoever keeps one for long copies it, or the file stays on the disk after it was replaced.

    Raises:
        CheckpointError: There is no such file, it is not whole, or it is not a checkpoint of ours.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint (truncated, or written by another program)"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this program ({FORMAT})")
    return content


def resolve(path: str, root: Path) -> Path:
    """The file that ``last`` or a path means.

    Args:
        path: ``"last"`` for the newest run's checkpoint below ``root``, a run's folder, or a file.
        root: ``<default_root_dir>/<name>``.

    Raises:
        CheckpointError: ``last`` finds no run.
    """
    if path != "last":
        given = Path(path)
        return given / "checkpoints" / "last.ckpt" if given.is_dir() else given
    # A run is named by its starting time, so the last name is the newest run.
    found = sorted(root.glob("*/checkpoints/last.ckpt"), key=lambda p: p.parts[-3])
    if not found:
        raise CheckpointError(f"--ckpt_path last: there is no checkpoint below {root}")
    return found[-1]


def pack(state: ServerState) -> dict[str, Any]:
    """A server's state as plain values and CPU tensors."""
    return {item.name: move(getattr(state, item.name), "cpu") for item in fields(state)}


def unpack(initial: StateT, content: Mapping[str, Any], device: torch.device | str) -> StateT:
    """The packed state, as an object like ``initial``.

    Raises:
        CheckpointError: The content belongs to another method's server.
    """
    names = {item.name for item in fields(initial)}
    if names != content.keys():
        raise CheckpointError(
            f"the checkpoint holds the server entries {sorted(content)}, this method needs "
            f"{sorted(names)}: it was written by another method"
        )
    return replace(
        initial, **{name: move(value, device, copy=True) for name, value in content.items()}
    )


def move(value: Any, device: torch.device | str, copy: bool = False) -> Any:  # noqa: ANN401
    """Move every tensor in nested dicts, lists and tuples.

    Args:
        value: What holds the tensors.
        device: Where they shall be.
        copy: Whether those that are there already are copied.
    """
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=copy)
    if isinstance(value, Mapping):
        return {key: move(item, device, copy) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(move(item, device, copy) for item in value)
    return value
