"""Storage for the kept states of many clients within a memory limit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from pfl.core.checks import not_negative
from pfl.core.state import compact, nbytes, to
from pfl.core.types import State
from pfl.disk import container


class _Held(NamedTuple):
    state: State
    size: int


class KeptStates(MutableMapping[int, State]):
    """A mapping of clients to kept states: the last used are in memory, others in mapped files.

    States are read exactly as they were written, on the CPU. A file is unlinked once it is mapped,
    so its space is freed however the process ends; its pages are loaded on use. Values must not be
    changed in place.

    Each state in a file is one memory mapping. Linux allows a process about 65,000 of them
    (``vm.max_map_count``), which limits the number of clients beyond the memory.

    Args:
        memory: Largest number of bytes of states in memory.
        parent: Folder of the files; ``None`` uses the system's folder for temporary files.

    Raises:
        ValueError: ``memory`` is negative.
    """

    def __init__(self, memory: int, parent: Path | None = None) -> None:
        not_negative(memory=memory)
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        self.memory, self._parent = memory, parent
        # Least recently used first.
        self._held: dict[int, _Held] = {}
        self._mapped: dict[int, State] = {}

    def __getitem__(self, client: int) -> State:
        if client in self._held:
            self._held[client] = self._held.pop(client)
            return self._held[client].state
        return {**self._mapped[client]}

    def __setitem__(self, client: int, state: State) -> None:
        self.update({client: state})

    def __delitem__(self, client: int) -> None:
        del (self._held if client in self._held else self._mapped)[client]

    def __contains__(self, client: object) -> bool:
        return client in self._held or client in self._mapped

    def __iter__(self) -> Iterator[int]:
        return iter(sorted((*self._held, *self._mapped)))

    def __len__(self) -> int:
        return len(self._held) + len(self._mapped)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several clients' states at once; the last given count as the most recently used.

        All files are written before any state changes, so that an interruption or a full disk
        leaves all states unchanged.

        Raises:
            OSError: A file cannot be written.
        """
        new = {client: _hold(state) for client, state in dict(*args, **kwargs).items()}
        held = {client: old for client, old in self._held.items() if client not in new} | new
        size, mapped = sum(one.size for one in held.values()), dict[int, State]()
        for client in [*held]:
            if size <= self.memory:
                break
            one = held.pop(client)
            mapped[client] = self._in_file(client, one.state)
            size -= one.size
        for client in new:
            self._mapped.pop(client, None)
        self._mapped |= mapped
        self._held = held

    def _in_file(self, client: int, state: State) -> State:
        """Return a state with its values in a file that is freed together with them."""
        handle, name = tempfile.mkstemp(prefix=".kept-", dir=self._parent)
        os.close(handle)
        file = Path(name)
        try:
            container.write(file, None, state, synced=False)
            return container.read(file, mapped=True, checked=False)[1]
        except OSError as error:
            raise OSError(f"client {client}'s state: {error}") from error
        finally:
            file.unlink(missing_ok=True)


def _hold(state: State) -> _Held:
    compacted = compact(to(state, "cpu"))
    return _Held(compacted, nbytes(compacted))
