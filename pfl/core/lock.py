"""Locks on folders, so that two processes never work on one; they end with their process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


class BusyError(OSError):
    """Another process is working on a folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes of this machine; create it if it is missing.

    Raises:
        BusyError: Another process holds the lock; the message names it.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    descriptor = hold(file, os.O_RDWR | os.O_CREAT)
    if descriptor is None:
        owner = file.read_text(encoding="utf-8").strip() or "another process"
        raise BusyError(f"{owner} is already working on {folder}")
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(descriptor)


def hold(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Lock a file or folder; return its descriptor, or ``None`` if another process holds it.

    The lock ends when the descriptor is closed, at the latest when the process ends.

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
