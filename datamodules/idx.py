"""Files in the idx format of MNIST, packed by gzip or not."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules import formats
from datamodules.checks import require


def find_idx(folder: Path, name: str) -> Path | None:
    """Return a file by name, unpacked or with the suffix .gz; ``None`` if neither exists."""
    files = (folder / name, folder / f"{name}.gz")
    return next((file for file in files if file.is_file()), None)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the bytes of a file, in the shape given by its header.

    Raises:
        ValueError: The file is damaged or has another format; the message names it.
    """
    with formats.reading(path, "is not an idx file of bytes", cure="copy it again"):
        content, _ = formats.content(path)
        zeros, kind, axes = struct.unpack(">HBB", content[:4])
        require(zeros == 0 and kind == 8 and 0 < axes <= 3, "its header is not one of bytes")
        begin = 4 + 4 * axes
        shape = struct.unpack(f">{axes}I", content[4:begin])
        size, given = prod(shape), len(content) - begin
        require(given == size, f"its shape {shape} has {size:,} bytes, but {given:,} follow")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
