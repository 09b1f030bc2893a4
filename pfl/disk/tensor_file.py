"""Files of tensors and plain values: written completely or not at all, and checked when read.

``torch.save`` writes a zip archive with a checksum for each entry; ``torch.load`` does not check
them.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import torch
from torch import UntypedStorage

from pfl.disk.reading import is_memory
from pfl.disk.writing import written

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

# In a zip entry's local header: its fixed length, and the offset of two variable lengths.
_HEADER, _LENGTHS = 30, 26
# Bytes that are copied at once, and that are worth a thread.
_CHUNK, _SHARE = 2**18, 2**21


class DamagedError(ValueError):
    """A file was changed after it was written, or was written by another program."""


def write(path: Path, content: Any) -> None:  # noqa: ANN401
    """Write a file atomically: a reader finds the old file or the new one, never a part.

    Args:
        path: The file.
        content: Tensors and plain values in dictionaries, lists and tuples.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path, synced=True) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # torch reports that its archive cannot be closed; the error before that is the cause.
            raise _cause(error) from None


def read(path: Path, mapped: bool = False) -> Any:  # noqa: ANN401
    """Return a file's content, all of which was verified.

    Args:
        path: The file.
        mapped: Whether tensors are memory-mapped and thus loaded when they are used. A replaced
            file then stays on the disk until its last tensor is gone. Otherwise tensors are copied.

    Raises:
        DamagedError: The file was not written by :func:`write`, or was changed since.
        OSError: The file cannot be read, or not enough memory is free.
    """
    try:
        with path.open("rb") as file:
            return _read(file, mapped)
    except OSError:
        raise
    except Exception as error:
        if is_memory(error):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error
        raise DamagedError(
            f"{path} is damaged, or was written by another program ({_short(error)})"
        ) from error


def _read(file: BinaryIO, mapped: bool) -> Any:  # noqa: ANN401
    content: Bytes = np.asarray(np.memmap(file, np.uint8, "r"))
    with ZipFile(file) as archive:
        entries = {_start(content, entry): entry for entry in archive.infolist()}
    tensors = {} if mapped else {at: e for at, e in entries.items() if _is_tensor(e)}
    _verify([_Part(content, at, e) for at, e in entries.items() if at not in tensors])
    places: list[tuple[int, Bytes]] = []

    def place(storage: UntypedStorage, location: str) -> UntypedStorage:
        """Return memory for a storage that lies in the file; it is filled below."""
        own = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
        if own.nbytes > 0:
            places.append((storage.data_ptr(), own.numpy()))
        return own.untyped_storage()

    # The path may be replaced meanwhile; the open file is not.
    name = file.name if sys.platform == "win32" else f"/dev/fd/{file.fileno()}"
    where: Any = "cpu" if mapped else place
    result = torch.load(name, map_location=where, mmap=True, weights_only=True)
    _verify(_parts(content, tensors, places))
    return result


class _Part(NamedTuple):
    """An entry of an archive, to be verified, and to be copied if there is memory for it.

    Attributes:
        content: The archive.
        start: Where the entry begins, in bytes.
        entry: What the archive's directory says of it.
        memory: Memory for its bytes.
    """

    content: Bytes
    start: int
    entry: ZipInfo
    memory: Bytes | None = None

    def verify(self) -> None:
        """Copy the entry if there is memory for it, and compare the checksum of the copy.

        Raises:
            DamagedError: It differs.
        """
        size, crc = self.entry.file_size, 0
        source = self.content[self.start : self.start + size]
        copy = source if self.memory is None else self.memory
        # Of a chunk that was just copied, the checksum is computed in the processor's cache.
        for at in range(0, size, _CHUNK):
            chunk = copy[at : at + _CHUNK]
            if self.memory is not None:
                np.copyto(chunk, source[at : at + _CHUNK])
            crc = zlib.crc32(chunk.data, crc)
        if self.entry.compress_type != ZIP_STORED or crc != self.entry.CRC:
            raise DamagedError(f"the checksum of {self.entry.filename} is wrong")


def _verify(parts: Sequence[_Part]) -> None:
    """Verify all parts, in as many threads as torch may use.

    Raises:
        DamagedError: A checksum is wrong.
    """
    # Largest first; each thread takes the next one, as cores may be busy with other things.
    todo = iter(sorted(parts, key=lambda part: -part.entry.file_size))
    # Few bytes are verified sooner than threads start.
    size = sum(part.entry.file_size for part in parts)
    threads = min(torch.get_num_threads(), 1 + size // _SHARE)
    with ThreadPoolExecutor(threads) as pool:
        do = pool.map if threads > 1 else map
        for _ in do(_verify_all, [todo] * threads):
            pass


def _verify_all(parts: Iterator[_Part]) -> None:
    for part in parts:
        part.verify()


def _parts(
    content: Bytes, tensors: Mapping[int, ZipInfo], places: Sequence[tuple[int, Bytes]]
) -> list[_Part]:
    """Return each tensor's entry with the memory for it.

    Args:
        content: The archive.
        tensors: Entries by where they begin.
        places: Of each storage, its address in a mapping of the archive, and the memory for it.

    Raises:
        DamagedError: Entries and storages differ.
    """
    ordered = sorted(places, key=lambda place: place[0])
    origin = ordered[0][0] - min(tensors, default=0) if ordered else 0
    found = {address - origin: memory for address, memory in ordered}
    sizes = {at: memory.nbytes for at, memory in found.items()}
    if sizes != {at: entry.file_size for at, entry in tensors.items()}:
        raise DamagedError("it holds other tensors than it lists")
    return [_Part(content, at, tensors[at], memory) for at, memory in found.items()]


def _is_tensor(entry: ZipInfo) -> bool:
    return "/data/" in entry.filename and entry.file_size > 0


def _start(content: Bytes, entry: ZipInfo) -> int:
    """Return where an entry's bytes begin, behind its local header."""
    name, extra = struct.unpack_from("<HH", content.data, entry.header_offset + _LENGTHS)
    return int(entry.header_offset + _HEADER + name + extra)


def _cause(error: RuntimeError) -> BaseException:
    """Return the interruption or the system's error that led to an error."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError | KeyboardInterrupt):
            return link
        link = link.__cause__ or link.__context__
    return error


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
