"""Tensors and plain values as bytes, in messages and in files.

The form is that of `safetensors <https://github.com/huggingface/safetensors>`_, whose readers can
open such a file. Its header, in JSON, names the tensors, with type, shape and place of each;
``__metadata__`` has the plain values (``content``, JSON as text) and a checksum (``sha256``) of all
bytes, its own digits taken as zeros. Equal content has equal bytes: each header has one canonical
form, and no other is read. Tensors keep their order; in a file, where strides may matter for the
last bit of a sum, they also keep the order of their values in memory.

Nothing is executed when bytes are read, and nothing is allocated before its sizes have been
checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pfl.disk.bounds import DEPTH, check_bounds
from pfl.disk.reading import naming_damage
from pfl.disk.writing import written

if sys.byteorder != "little":
    raise ImportError("pfl needs a little-endian machine, as its files are little-endian")

# Bytes of a message and of its header; axes of a tensor, and the product of their lengths.
BYTES, HEADER, AXES, LARGEST = 2**32, 2**24, 16, 2**62
_LENGTH = 8  # bytes of a header's length
_SHOWN = 100  # characters of a wrong value in a message
_START = b'{"__metadata__":{"sha256":"'
_DIGITS = slice(_LENGTH + len(_START), _LENGTH + len(_START) + 64)
_ZEROS = b"0" * 64
_DTYPES: Mapping[str, torch.dtype] = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64, "C128": torch.complex128},
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# First bytes of exported models, and of whatever else torch saves.
_ARCHIVE = b"PK\x03\x04"

Part: TypeAlias = bytes | memoryview


class ContainerError(ValueError):
    """Bytes do not have the form: they are damaged, too large, or from another program."""


class _Place(NamedTuple):
    """Type and shape of a tensor, and the position of its bytes among those of all tensors."""

    dtype: torch.dtype
    shape: Sequence[int]
    start: int
    stop: int


def pack(content: Any, tensors: Mapping[str, Tensor]) -> bytes:  # noqa: ANN401
    """Return content and named tensors as bytes.

    Args:
        content: Plain values in lists and dictionaries with text keys; numbers are finite.
        tensors: By name.

    Raises:
        ValueError: A tensor's type is not supported, a number is not finite, or nobody could read
            the message, as it is too large or its content is too deep.
    """
    head, *values = _parts(content, tensors)
    if len(head) > _LENGTH + HEADER:
        raise ValueError(f"a message may have a header of {HEADER:,} bytes, got {len(head):,}")
    if (size := sum(map(len, [head, *values]))) > BYTES:
        raise ValueError(f"a message may have {BYTES:,} bytes, got {size:,}")
    digits = _checksum([head, *values])
    return b"".join([head[: _DIGITS.start], digits, head[_DIGITS.stop :], *values])


def unpack(data: bytes, most: int = BYTES) -> tuple[Any, dict[str, Tensor]]:
    """Return the content and the tensors of a message; the tensors are copies on the CPU.

    Raises:
        ContainerError: The bytes do not have the form, or are too many.
    """
    if len(data) > most:
        raise ContainerError(f"a message may have {most:,} bytes, got {len(data):,}")
    view = memoryview(data)

    def copied(start: int, stop: int) -> Tensor:
        # The copy is aligned, and does not keep the message alive.
        return torch.frombuffer(bytearray(view[start:stop]), dtype=torch.uint8)

    return _read(view, copied, HEADER)


def octets(value: Tensor) -> Tensor:
    """Return the bytes of a tensor's numbers, in order, on the CPU."""
    flat = value.detach().cpu().resolve_conj().contiguous()
    # The stride of a single number may be any.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def checksum_of(data: bytes) -> bytes:
    """Return the checksum that a message states, as 64 digits; of other bytes, what is there."""
    return data[_DIGITS]


def write(
    path: Path,
    content: Any,  # noqa: ANN401
    tensors: Mapping[str, Tensor],
    synced: bool = True,
) -> None:
    """Write a file atomically: a reader finds the old file or the new one, never a part.

    Args:
        path: The file.
        content: As for :func:`pack`.
        tensors: As for :func:`pack`.
        synced: See :func:`pfl.disk.writing.written`.

    Raises:
        OSError: The file cannot be written.
        ValueError: See :func:`pack`.
    """
    layouts, stored = dict[str, list[int]](), dict(tensors)
    for name, value in tensors.items():
        if (axes := _axes(value)) is not None:
            layouts[name], stored[name] = axes, value.permute(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path, synced) as file:
        checksum = hashlib.sha256()
        for part in _parts([content, layouts], stored):
            checksum.update(part)
            file.write(part)
        file.seek(_DIGITS.start)
        file.write(checksum.hexdigest().encode())


def read(path: Path, checked: bool = True, own: bool = False) -> tuple[Any, dict[str, Tensor]]:
    """Return a file's content and its tensors, on the CPU.

    Tensors lie in the file, and are loaded when they are used. A file that is replaced stays on
    the disk until the last of them is gone.

    Args:
        path: The file.
        checked: Whether the checksum is verified, which reads the whole file.
        own: Whether this process may write the file, and nobody else does: its tensors can then
            leave the memory (:func:`pfl.disk.room.leave_memory`).

    Raises:
        ContainerError: The file was not written by :func:`write`, or was changed since.
        OSError: The file cannot be read, or not enough memory is free.
    """
    with path.open("rb") as file, naming_damage(path, ContainerError):
        if file.read(len(_ARCHIVE)) == _ARCHIVE:
            raise ContainerError("it is an exported model, or a file that torch.save wrote")
        # The path may be replaced meanwhile; the open file is not.
        name = file.name if sys.platform == "win32" else f"/dev/fd/{file.fileno()}"
        size = os.fstat(file.fileno()).st_size
        whole = torch.from_file(name, shared=own, size=size, dtype=torch.uint8)

        def part(start: int, stop: int) -> Tensor:
            return whole[start:stop]

        pair, tensors = _read(memoryview(whole.numpy().data), part, size, checked)
        try:
            content, layouts = pair
            if not isinstance(layouts, dict):
                raise TypeError(f"layouts by name were expected, got {layouts!r}"[:_SHOWN])
            tensors |= {name: _laid_out(tensors[name], layouts[name]) for name in layouts}
        except (ValueError, LookupError, TypeError, RuntimeError) as error:
            raise ContainerError(f"the layout of a tensor is wrong: {error!r}") from error
        return content, tensors


def _axes(value: Tensor) -> list[int] | None:
    """Return the axes of a tensor in the order of its memory; ``None`` if it is the usual one.

    A layout is a permutation, so that a file can say nothing of places in memory.
    """
    if value.numel() < 2:
        return None
    given = torch.empty_like(value, device="meta").stride()
    # The stride of an axis of length one may be any number, and is another one once it is read.
    strides = _strides(value.shape, _ordered(value.shape, given))
    axes = _ordered(value.shape, strides)
    return None if strides == torch.empty(value.shape, device="meta").stride() else axes


def _ordered(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return axes by descending strides; of equal ones, that of an axis of length one is later."""
    return sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))


def _strides(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose axes lie in memory in an order."""
    stored = torch.empty([shape[axis] for axis in axes], device="meta")
    return stored.permute(_inverse(axes)).stride()


def _inverse(axes: Sequence[int]) -> list[int]:
    return sorted(range(len(axes)), key=lambda place: axes[place])


def _laid_out(stored: Tensor, axes: Sequence[int]) -> Tensor:
    """Return a stored tensor with its axes in their right order.

    Raises:
        ValueError: The order is not one that :func:`write` writes.
    """
    if sorted(axes) != [*range(stored.dim())] or any(type(axis) is not int for axis in axes):
        raise ValueError(f"{str(axes)[:60]} is no order of {stored.dim()} axes")
    value = stored.permute(_inverse(axes))
    if _axes(value) != [*axes]:
        raise ValueError(f"{[*axes]} is not the canonical order")
    return value


def _read(
    view: memoryview, part: Callable[[int, int], Tensor], longest: int, checked: bool = True
) -> tuple[Any, dict[str, Tensor]]:
    """Return the content and the tensors of bytes.

    Args:
        view: The bytes.
        part: Returns some of them as a tensor of bytes.
        longest: Largest length of the header.
        checked: Whether the checksum is verified.

    Raises:
        ContainerError: The bytes do not have the form.
    """
    if len(view) < _DIGITS.stop or view[_LENGTH : _DIGITS.start] != _START:
        raise ContainerError(f"{len(view):,} bytes are not a message: too few, or another start")
    end = _LENGTH + int.from_bytes(view[:_LENGTH], "little")
    if end > min(_LENGTH + longest, len(view)):
        raise ContainerError(f"the header of a message has {end:,} bytes, which are too many")
    head = b"".join([view[: _DIGITS.start], _ZEROS, view[_DIGITS.stop : end]])
    if checked and view[_DIGITS] != _checksum([head, view[end:]]):
        raise ContainerError("the checksum is wrong: it was damaged on its way")
    try:
        header = json.loads(head[_LENGTH:])
        content = json.loads(header.pop("__metadata__")["content"])
        check_bounds(content, math.inf)
        places = _placed({n: (_DTYPES[i["dtype"]], i["shape"]) for n, i in header.items()})
        size = sum(one.stop - one.start for one in places.values())
        if _head(content, places) != head or size != len(view) - end:
            raise ValueError("it is not in the canonical form")
        return content, {name: _tensor(one, part, end) for name, one in places.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"more than {DEPTH} levels" if isinstance(error, RecursionError) else repr(error)
        raise ContainerError(f"the header of a message is wrong: {what}") from error


def _tensor(place: _Place, part: Callable[[int, int], Tensor], end: int) -> Tensor:
    if place.start == place.stop:
        return torch.empty(place.shape, dtype=place.dtype)
    octets = part(end + place.start, end + place.stop)
    if place.dtype is torch.bool and int(octets.max()) > 1:
        raise ValueError("a truth value of a message is neither 0 nor 1")
    return octets.view(place.dtype).reshape(place.shape)


def _placed(kinds: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> dict[str, _Place]:
    """Return the place of each tensor: those of large types come first, so that all are aligned.

    Raises:
        ValueError: A shape is invalid or too large.
    """
    places, start = dict[str, _Place](), 0
    for name in sorted(kinds, key=lambda name: -kinds[name][0].itemsize):
        dtype, shape = kinds[name]
        # A tensor without elements may still have an axis that no memory has room for.
        sound = len(shape) <= AXES and all(type(n) is int and n >= 0 for n in shape)
        if not sound or math.prod(max(1, n) for n in shape) > LARGEST:
            raise ValueError(f"tensor {name[:60]!r} cannot have the shape {str(shape)[:60]}")
        stop = start + math.prod(shape) * dtype.itemsize
        places[name], start = _Place(dtype, shape, start, stop), stop
    return {name: places[name] for name in kinds}


def _parts(content: Any, tensors: Mapping[str, Tensor]) -> Iterator[Part]:  # noqa: ANN401
    """Yield the head of a message, with zeros for a checksum, and the bytes of each tensor."""
    check_bounds(content, math.inf)
    places = _placed({name: (value.dtype, (*value.shape,)) for name, value in tensors.items()})
    yield _head(content, places)
    for name in sorted(places, key=lambda name: places[name].start):
        yield octets(tensors[name]).numpy().data


def _head(content: Any, places: Mapping[str, _Place]) -> bytes:  # noqa: ANN401
    packed = json.dumps(
        content, sort_keys=True, allow_nan=False, separators=(",", ":"), ensure_ascii=False
    )
    header: dict[str, Any] = {"__metadata__": {"sha256": _ZEROS.decode(), "content": packed}}
    for name, (dtype, shape, start, stop) in places.items():
        if dtype not in _NAMES or name in header:
            raise ValueError(f"{name}: a message cannot have such a tensor of {dtype}")
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text


def _checksum(parts: Iterable[Part]) -> bytes:
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest().encode()
