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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import torch

from pfl.disk.reading import DEPTH, first_line, is_memory
from pfl.disk.writing import written

# In a zip entry's local header: its fixed length, and the offset of two variable lengths.
_HEADER, _LENGTHS = 30, 26
# Bytes that are worth a thread.
_SHARE = 2**21

# Values of a file, where each reference to one counts.
VALUES = 10_000_000


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
            f"{path} is damaged, or was written by another program ({first_line(error)})"
        ) from error


def _read(file: BinaryIO, mapped: bool) -> Any:  # noqa: ANN401
    with ZipFile(file) as archive:
        # Largest first; each thread takes the next one, as cores may be busy with other things.
        entries = sorted(archive.infolist(), key=lambda entry: -entry.file_size)
    verify = partial(_verify, mmap(file.fileno(), 0, access=ACCESS_READ))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        # Few bytes are verified sooner than threads start.
        do = pool.map if sum(entry.file_size for entry in entries) > _SHARE else map
        for _ in do(verify, entries):
            pass
    # The path may be replaced meanwhile; the open file is not.
    name = file.name if sys.platform == "win32" else f"/dev/fd/{file.fileno()}"
    where: Any = "cpu" if mapped else lambda storage, _: storage.clone()
    return bounded(torch.load(name, map_location=where, mmap=True, weights_only=True))


def bounded(content: Any, most: int = VALUES) -> Any:  # noqa: ANN401
    """Return a content through which a program can walk.

    A file can refer to one list many times, and to a list within itself.

    Args:
        content: Dictionaries, lists and tuples within each other.
        most: How many values they may have, where each reference counts.

    Raises:
        DamagedError: They have more, or are deeper than :data:`pfl.disk.reading.DEPTH`.
    """
    open_ = [(content, 0)]
    while open_:
        value, depth = open_.pop()
        if isinstance(value, dict | list | tuple):
            most -= len(value)
            if most < 0 or depth == DEPTH:
                raise DamagedError("it has too many values, or too many levels")
            inner = value.values() if isinstance(value, dict) else value
            open_ += [(v, depth + 1) for v in inner if isinstance(v, dict | list | tuple)]
    return content


def _verify(content: mmap, entry: ZipInfo) -> None:
    """Compare the checksum of an archive's entry.

    Raises:
        DamagedError: It differs.
    """
    start = _start(content, entry)
    crc = zlib.crc32(memoryview(content)[start : start + entry.file_size])
    if entry.compress_type != ZIP_STORED or crc != entry.CRC:
        raise DamagedError(f"the checksum of {entry.filename} is wrong")


def _start(content: mmap, entry: ZipInfo) -> int:
    """Return where an entry's bytes begin, behind its local header."""
    name, extra = struct.unpack_from("<HH", content, entry.header_offset + _LENGTHS)
    return int(entry.header_offset + _HEADER + name + extra)


def _cause(error: RuntimeError) -> BaseException:
    """Return the interruption or the system's error that led to an error."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError | KeyboardInterrupt):
            return link
        link = link.__cause__ or link.__context__
    return error
