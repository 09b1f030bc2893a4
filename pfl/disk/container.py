"""The canonical byte form of a message: a JSON header, raw tensors, and a checksum.

Equal content has equal bytes. The form is

======================  ==========================================================================
8 bytes                 ``PFLMSG`` and the version of the form, as a whole number of 16 bits
4 bytes                 length of the header
header                  JSON in UTF-8: ``{"content": ..., "tensors": [[name, dtype, shape], ...]}``,
                        keys in order, without spaces
tensors                 their values one after another, in the header's order and in row-major order
32 bytes                SHA-256 of all that comes before
======================  ==========================================================================

All numbers are little-endian; bfloat16 is the 16-bit word of its bits. Nothing is executed when a
message is read, and nothing is allocated before its sizes have been checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pfl.disk.reading import DEPTH, check_depth

# Bytes of a message and of its header, tensors, and axes of a tensor.
BYTES, HEADER, TENSORS, AXES = 2**32, 2**24, 2**16, 16
_MAGIC, _VERSION = b"PFLMSG", 1
_START = struct.Struct("<6sHI")
_SUM = 32
_DTYPES: Mapping[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class ContainerError(ValueError):
    """Bytes are not a message: they are damaged, too large, or of another program."""


def pack(content: Any, tensors: Mapping[str, Tensor]) -> bytes:  # noqa: ANN401
    """Return content and named tensors in the canonical byte form.

    Args:
        content: Plain values in lists and dictionaries with text keys; numbers are finite.
        tensors: By name; their order is kept, their strides are not.

    Raises:
        ValueError: A tensor has a type without a byte form, or a number is not finite.
    """
    described = [[name, _named(name, value), list(value.shape)] for name, value in tensors.items()]
    header = _header({"content": content, "tensors": described})
    start = _START.pack(_MAGIC, _VERSION, len(header))
    parts: list[bytes | memoryview] = [start, header, *map(_raw, tensors.values())]
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return b"".join([*parts, checksum.digest()])


def unpack(data: bytes, most: int = BYTES) -> tuple[Any, dict[str, Tensor]]:
    """Return the content and the tensors of a message; the tensors are copies on the CPU.

    Raises:
        ContainerError: The bytes are not a message in the canonical form, or are too many.
    """
    if len(data) > most:
        raise ContainerError(f"a message may have {most:,} bytes, got {len(data):,}")
    if len(data) < _START.size + _SUM:
        raise ContainerError(f"{len(data)} bytes are too few for a message")
    magic, version, length = _START.unpack_from(data)
    if magic != _MAGIC:
        raise ContainerError(f"expected a message that begins with {_MAGIC!r}, got {magic!r}")
    if version != _VERSION:
        raise ContainerError(f"expected version {_VERSION} of the form of messages, got {version}")
    end = len(data) - _SUM
    if length > min(HEADER, end - _START.size):
        raise ContainerError(f"the header of a message has {length:,} bytes, which are too many")
    view = memoryview(data)
    if hashlib.sha256(view[:end]).digest() != data[end:]:
        raise ContainerError("the checksum of a message is wrong: it was damaged on its way")
    start = _START.size + length
    content, described = _read_header(bytes(view[_START.size : start]))
    if (total := sum(size for *_, size in described)) != end - start:
        raise ContainerError(
            f"the header of a message tells of {total:,} bytes of tensors, but there are "
            f"{end - start:,}"
        )
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape, size in described:
        tensors[name] = _tensor(data, start, size, dtype, shape)
        start += size
    return content, tensors


def _read_header(data: bytes) -> tuple[Any, list[tuple[str, torch.dtype, list[int], int]]]:
    """Return the content, and name, type, shape and bytes of each tensor.

    Raises:
        ContainerError: The header is not as :func:`pack` writes it.
    """
    try:
        header = json.loads(data.decode("utf-8"), parse_constant=_refuse)
        check_depth(header)
        canonical = _header(header)
    except RecursionError:
        raise ContainerError(f"the header of a message has more than {DEPTH} levels") from None
    except ValueError as error:
        raise ContainerError(f"the header of a message is no JSON ({error})") from error
    if not isinstance(header, dict) or header.keys() != {"content", "tensors"}:
        raise ContainerError("the header of a message must hold content and tensors")
    if canonical != data:
        raise ContainerError("the header of a message is not in the canonical form")
    described = header["tensors"]
    if not isinstance(described, list) or len(described) > TENSORS:
        raise ContainerError(f"a message holds a list of up to {TENSORS:,} tensors")
    tensors = [_described(item) for item in described]
    if len({name for name, *_ in tensors}) < len(tensors):
        raise ContainerError("a message names a tensor twice")
    return header["content"], tensors


def _described(item: Any) -> tuple[str, torch.dtype, list[int], int]:  # noqa: ANN401
    if not isinstance(item, list) or [type(part) for part in item] != [str, str, list]:
        raise ContainerError("a tensor of a message must have a name, a type and a shape")
    name, dtype, shape = item
    if dtype not in _DTYPES:
        raise ContainerError(f"tensor {name[:60]!r}: {dtype[:20]!r} is no type of a message")
    if len(shape) > AXES or not all(type(n) is int and 0 <= n <= BYTES for n in shape):
        raise ContainerError(f"tensor {name[:60]!r}: {str(shape)[:60]} is no shape of a message")
    # A tensor without elements may still have an axis that no memory has room for.
    if math.prod(max(1, n) for n in shape) > BYTES:
        raise ContainerError(f"tensor {name[:60]!r}: the shape {shape} is too large")
    return name, _DTYPES[dtype], shape, math.prod(shape) * _DTYPES[dtype].itemsize


def _tensor(data: bytes, start: int, size: int, dtype: torch.dtype, shape: list[int]) -> Tensor:
    # Also aligned, and free of the message.
    raw = bytearray(memoryview(data)[start : start + size])
    if not raw:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool and raw.translate(None, b"\x00\x01"):
        raise ContainerError("a truth value of a message is neither 0 nor 1")
    return _swapped(torch.frombuffer(raw, dtype=torch.uint8), dtype).view(dtype).reshape(shape)


def _raw(value: Tensor) -> memoryview:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return _swapped(flat.view(torch.uint8), value.dtype).numpy().data


def _swapped(octets: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes in the other order on a machine that is not little-endian."""
    if sys.byteorder == "little":
        return octets
    return octets.view(-1, dtype.itemsize).flip(1).reshape(-1)


def _named(name: str, value: Tensor) -> str:
    if value.dtype not in _NAMES:
        raise ValueError(f"{name}: a message has no form for tensors of {value.dtype}")
    return _NAMES[value.dtype]


def _header(content: Any) -> bytes:  # noqa: ANN401
    packed = json.dumps(
        content, sort_keys=True, allow_nan=False, separators=(",", ":"), ensure_ascii=False
    )
    return packed.encode("utf-8")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")
