"""Exported modules: files that ``load_from_checkpoint`` and a Trainer can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning

from pfl.core import tensor_file
from pfl.core.client import Client


def write(path: Path, module: Client, arguments: Mapping[str, Any]) -> None:
    """Write a module as a Lightning checkpoint.

    Args:
        path: The file.
        module: The module; it is moved to the CPU.
        arguments: The arguments that build it again, in plain values.

    Raises:
        OSError: The file cannot be written.
    """
    content: dict[str, Any] = {
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": module.cpu().state_dict(),
        "hyper_parameters": dict(arguments),
    }
    module.on_save_checkpoint(content)
    tensor_file.write(path, content)
