"""Files of tensors and plain values: written completely or not at all, and checked when read.

``torch.save`` writes a zip archive with a checksum for each entry; ``torch.load`` does not check
them.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import torch

# In a zip entry's local header: its fixed length, and the offset of two variable lengths.
_HEADER, _LENGTHS = 30, 26
_THREADS, _SHARE = 4, 2**23
# Pattern of the names of files that are being written; see scratch_of.
SCRATCH = r"\..+\.\d+"


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
    scratch = scratch_of(path)
    try:
        with scratch.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except RuntimeError as error:
        # torch reports that its archive cannot be closed; the error before that is the cause.
        raise _cause(error) from None
    finally:
        scratch.unlink(missing_ok=True)


def read(path: Path) -> Any:  # noqa: ANN401
    """Return a file's content; tensors are memory-mapped, so they are loaded when they are used.

    Copy a tensor to keep it for long: while it is mapped, a replaced file stays on the disk.

    Raises:
        DamagedError: The file was not written by :func:`write`, or was changed since.
        OSError: The file cannot be read.
    """
    try:
        _verify(path)
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise DamagedError(
            f"{path} is damaged, or was written by another program ({_short(error)})"
        ) from error


def scratch_of(path: Path) -> Path:
    """Return the temporary path to which this process writes before it replaces ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _verify(path: Path) -> None:
    """Compare the checksum of every entry with its bytes.

    Raises:
        DamagedError: A checksum differs.
        BadZipFile: The file is not an archive.
    """
    with path.open("rb") as file, ZipFile(file) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: -entry.file_size)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Few bytes are checked sooner than threads start.
            threads = min(_THREADS, 1 + len(content) // _SHARE)
            check = partial(_damaged, content)
            with ThreadPoolExecutor(threads) as pool:
                do = pool.map if threads > 1 else map
                for damaged in do(check, [entries[n::threads] for n in range(threads)]):
                    if damaged:
                        raise DamagedError(f"the checksum of {damaged[0]} is wrong")


def _damaged(content: mmap.mmap, entries: Sequence[ZipInfo]) -> list[str]:
    found = []
    with memoryview(content) as view:
        for entry in entries:
            lengths = struct.unpack_from("<HH", view, entry.header_offset + _LENGTHS)
            start = entry.header_offset + _HEADER + sum(lengths)
            with view[start : start + entry.file_size] as data:
                whole = entry.compress_type == ZIP_STORED and len(data) == entry.file_size
                if not whole or zlib.crc32(data) != entry.CRC:
                    found.append(entry.filename)
    return found


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
