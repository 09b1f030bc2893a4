"""Locks on folders, so that two processes never work on one; they end with their process.

Some file systems, mostly of networks, have no such locks. There a folder is marked by a file, which
a killed process leaves behind.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import SoftFileLock, Timeout

from pfl.disk.writing import naming, no_link, opened

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
# Where there are no locks: exists while a process is working on the folder.
MARK = ".lock.held"
_LACKING = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
# A host's name in full; nothing else is repeated in a message.
_OWNER = re.compile(r"process \d{1,9} on [\w.-]{1,255}")


class BusyError(OSError):
    """Another process is working on a folder."""


class NoLocksError(OSError):
    """A file system has no locks."""


class NoLocksWarning(UserWarning):
    """A file system has no locks, so that a folder is marked by a file."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes of this machine; create it if it is missing.

    Where the file system has no locks, it is locked against all machines, by a file. One that a
    killed process of this machine left is taken over; one of another machine has to be removed by
    hand.

    Raises:
        BusyError: Another process holds the lock; the message names it.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    try:
        descriptor = hold(file, os.O_RDWR | os.O_CREAT)
    except NoLocksError as error:
        with _marked(folder, error):
            yield
        return
    if descriptor is None:
        raise BusyError(f"{_owner(file)} is already working on {folder}")
    try:
        with naming(file):
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(descriptor)


def hold(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Lock a file or folder; return its descriptor, or ``None`` if another process holds it.

    The lock ends when the descriptor is closed, at the latest when the process ends.

    Raises:
        NoLocksError: The file system has no locks.
        OSError: The path cannot be opened, or is a link.
    """
    descriptor = opened(path, flags)
    if fcntl is None:
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        if error.errno in _LACKING:
            raise NoLocksError(f"the file system of {path} has no locks ({error})") from error
        raise
    return descriptor


@contextmanager
def _marked(folder: Path, why: NoLocksError) -> Iterator[None]:
    """Mark a folder by a file.

    Raises:
        BusyError: It is marked; the message names the file.
    """
    mark = SoftFileLock(no_link(folder / MARK), timeout=0, thread_local=False)
    try:
        mark.acquire()
    except Timeout:
        what = f"another process is already working on {folder}"
        raise BusyError(f"{what}; if it has ended, remove {folder / MARK}") from None
    try:
        warnings.warn(
            f"{why}: {folder / MARK} keeps other processes out until this one has ended",
            NoLocksWarning,
            stacklevel=4,
        )
        yield
    finally:
        mark.release()


def _owner(file: Path) -> str:
    """Return who wrote a lock's file."""
    with file.open("rb") as stream:
        text = stream.read(300).decode("utf-8", "replace").strip()
    return text if _OWNER.fullmatch(text) else "another process"
