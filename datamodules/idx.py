"""Files in the idx format of MNIST, packed by gzip or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.checks import require

# Maximum number of bytes; MNIST has 47 million.
_MOST = 2**31
_PACKED = ".gz"


def find_idx(folder: Path, name: str) -> Path | None:
    """Return a file by name, unpacked or with the suffix .gz; ``None`` if neither exists."""
    files = (folder / name, folder / f"{name}{_PACKED}")
    return next((file for file in files if file.is_file()), None)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the bytes of a file, in the shape given by its header.

    Raises:
        ValueError: The file is damaged or has another format; the message names it.
    """
    try:
        with gzip.open(path) if path.suffix == _PACKED else path.open("rb") as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            require(
                zeros == 0 and kind == 8 and 0 < axes <= 3,
                "its header is not one of bytes",
            )
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            size = prod(shape)
            require(size < _MOST, f"its shape {shape} is too large")
            data = file.read(size + 1)
        require(len(data) == size, f"it does not have the {size:,} bytes of its shape {shape}")
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise ValueError(f"{path} is not an idx file of bytes: {error}") from error
    return np.frombuffer(data, np.uint8).reshape(shape)
