"""Storage for the kept states of many clients within a limit of memory."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from pfl.core.checks import not_negative
from pfl.core.state import compact, nbytes, to
from pfl.core.types import State
from pfl.disk import container
from pfl.disk.lock import NoLocksError, hold

_PREFIX = ".kept-"
_FOLDER, _FILE = re.compile(r"\.kept-\w+"), re.compile(r"\.?\d+-\d+\.state(\.\d+)?")


class _Held(NamedTuple):
    state: State
    size: int


class KeptStates(MutableMapping[int, State]):
    """A mapping of clients to kept states: the last used are in CPU memory, others in files.

    States are read exactly as they were written, on the CPU. A state in a file is memory-mapped:
    its pages are loaded when they are used, and a state that was read does not change when the
    client gets a new one. Values must not be changed in place.

    The files are in a folder of their own, which is deleted with the mapping.

    Args:
        memory: Largest number of bytes of states in memory.
        parent: Where to create the folder; ``None`` uses the system's folder for temporary files.

    Raises:
        ValueError: ``memory`` is negative.
    """

    def __init__(self, memory: int, parent: Path | None = None) -> None:
        not_negative(memory=memory)
        self.memory = memory
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
            clear(parent)
        self.folder, lock = _own_folder(parent)
        # Finalizers run in reverse order.
        if lock is not None:
            weakref.finalize(self, os.close, lock)
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._numbers = count()
        # Least recently used first. If a client is in memory, its file is out of date.
        self._held: dict[int, _Held] = {}
        self._files: dict[int, Path] = {}

    def __getitem__(self, client: int) -> State:
        if client in self._held:
            self._held[client] = self._held.pop(client)
            return self._held[client].state
        # Nobody else writes the file.
        return container.read(self._files[client], mapped=True, checked=False)[1]

    def __setitem__(self, client: int, state: State) -> None:
        self.update({client: state})

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        file = self._files.pop(client, None)
        self._held.pop(client, None)
        if file is not None:
            file.unlink()

    def __contains__(self, client: object) -> bool:
        return client in self._held or client in self._files

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held.keys() | self._files.keys()))

    def __len__(self) -> int:
        return len(self._held.keys() | self._files.keys())

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several clients' states at once; those given last count as last used.

        All files are written before any state changes, so that an interruption or a full disk
        leaves all states unchanged.

        Raises:
            OSError: A file cannot be written.
        """
        new = {client: _hold(state) for client, state in dict(*args, **kwargs).items()}
        held = {client: old for client, old in self._held.items() if client not in new} | new
        size, files = sum(one.size for one in held.values()), dict[int, Path]()
        for client in [*held]:
            if size <= self.memory:
                break
            one = held.pop(client)
            files[client] = self._write(client, one.state)
            size -= one.size
        superseded = [self._files.pop(client) for client in new if client in self._files]
        self._files |= files
        self._held = held
        for file in superseded:
            file.unlink()

    def _write(self, client: int, state: State) -> Path:
        """Write a state to a new file, which nothing refers to before it is complete."""
        path = self.folder / f"{client}-{next(self._numbers)}.state"
        try:
            container.write(path, None, state, synced=False)
        except OSError as error:
            raise OSError(f"cannot write client {client}'s state to {path}: {error}") from error
        return path


def clear(parent: Path) -> None:
    """Remove folders that killed processes have left behind.

    Where the file system has no locks they stay, as nobody can tell that their process has ended.
    """
    for folder in parent.glob(f"{_PREFIX}*"):
        # Another process may have removed the folder first, and what is no folder of ours stays.
        with suppress(FileNotFoundError, NotADirectoryError, NoLocksError):
            if not _is_own(folder) or (lock := hold(folder)) is None:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_own(folder: Path) -> bool:
    """Return ``True`` if a folder holds nothing but states of clients."""
    if folder.is_symlink() or not _FOLDER.fullmatch(folder.name):
        return False
    return all(_FILE.fullmatch(file.name) for file in folder.iterdir())


def _own_folder(parent: Path | None) -> tuple[Path, int | None]:
    """Create a folder; return it and its lock, which other processes need to remove it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            lock = hold(folder)
        except FileNotFoundError:
            continue
        except NoLocksError:
            return folder, None
        if lock is not None and folder.exists():
            return folder, lock


def _hold(state: State) -> _Held:
    compacted = compact(to(state, "cpu"))
    return _Held(compacted, nbytes(compacted))
