"""Locks on folders, so that two processes never work on one; they end with their process.

Some file systems, mostly network ones, have no such locks. There a file marks the folder, and a
killed process leaves it behind.
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

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from pfl.disk.writing import naming, no_link, opened

NAME = ".lock"
# Without locks: exists while a process is working on the folder.
MARK = ".lock.held"
_LACKING = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
# With the host's full name; messages repeat nothing else of the file.
_OWNER = re.compile(r"process \d{1,9} on [\w.-]{1,255}")


class BusyError(OSError):
    """Another process is working on a folder."""


class NoLocksWarning(UserWarning):
    """A file system has no locks, so a file marks the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes of this machine; create it if it is missing.

    Where the file system has no locks, it is locked against all machines, by a file. The file of a
    killed process is taken over if it ran on this machine; otherwise it has to be removed manually.

    Raises:
        BusyError: Another process has the lock; the message names it.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    os.close(opened(file, os.O_RDWR | os.O_CREAT))
    try:
        lock = acquired(file)
    except OSError as error:
        if error.errno not in _LACKING:
            raise
        mark = no_link(folder / MARK)
        if (lock := acquired(mark, SoftFileLock)) is None:
            busy = f"another process is already working on {folder}; if it has ended, remove {mark}"
            raise BusyError(busy) from None
        what = f"the file system of {file} has no locks ({error}): {mark} keeps other processes out"
        warnings.warn(f"{what} until this one has ended", NoLocksWarning, stacklevel=3)
    if lock is None:
        raise BusyError(f"{_owner(file)} is already working on {folder}")
    try:
        with naming(file):
            file.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()


def acquired(file: Path, kind: type[BaseFileLock] = FileLock) -> BaseFileLock | None:
    """Return a lock on a file, released with this process; ``None`` if another process has it.

    Raises:
        OSError: The file cannot be opened, or its file system has no locks.
    """
    # At the first try, some versions only remove the file of a process that has ended.
    wait = 0.2 if kind is SoftFileLock else 0
    lock = kind(file, timeout=wait, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def _owner(file: Path) -> str:
    """Return the owner named in a lock's file."""
    with file.open("rb") as stream:
        text = stream.read(300).decode("utf-8", "replace").strip()
    return text if _OWNER.fullmatch(text) else "another process"
