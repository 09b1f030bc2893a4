"""Locks that end with the process that holds them, so that two never work on one folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there nobody is kept out
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


class BusyError(OSError):
    """Another process is at work on a folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside, no other process of this machine works on the folder, which is made if need be.

    Raises:
        BusyError: One does; it is named.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    descriptor = hold(file, os.O_RDWR | os.O_CREAT)
    if descriptor is None:
        owner = file.read_text(encoding="utf-8").strip() or "another process"
        raise BusyError(f"{owner} is at work on {folder}")
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(descriptor)


def hold(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Lock a file or a folder; return its descriptor, or ``None`` where another holds it.

    The lock ends when the descriptor is closed, by the end of the process at the latest.

    Raises:
        OSError: The path cannot be opened.
    """
    descriptor = os.open(path, flags, 0o644)
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
    return descriptor
