"""The keeper of what clients keep from round to round: in memory, in files, or at sites."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch

from pfl.core.checks import not_negative
from pfl.core.failure import ExplainedError
from pfl.core.state import clone, compact, digest, nbytes, to
from pfl.core.types import Job, Result, State, Ticket
from pfl.disk import container
from pfl.disk.room import Room, leave_memory


class NotHereError(ExplainedError, ValueError):
    """A client stores its state itself, so that nobody can read it here."""


class Keeper(MutableMapping[int, State]):
    """What each client keeps from its last participation, by client.

    Without a bound, states are in memory, on the run's device. With one, the last used are in the
    CPU's memory and others in mapped files. States are read exactly as they were written. A file is
    unlinked once it is mapped, so its space is freed however the process ends; its pages are loaded
    on use. Values must not be changed in place.

    Each state in a file is one memory mapping. Linux allows a process about 65,000 of them
    (``vm.max_map_count``), which limits the number of clients beyond the memory.

    Of a client that stores its state itself there is a ticket. Such a state cannot be read here.

    Args:
        memory: Largest number of bytes of states in memory; ``None`` for no bound.
        folder: Folder of the files; ``None`` uses the system's folder for temporary files.
        device: The run's device.

    Raises:
        ValueError: ``memory`` is negative.
    """

    def __init__(
        self,
        memory: int | None = None,
        folder: Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        not_negative(memory=memory)
        self._memory, self._folder, self._device = memory, folder, device
        self._kept: dict[int, State | Ticket] = {}
        # Bytes of the states in memory, under a bound; least recently used first.
        self._sizes: dict[int, int] = {}
        # From the round that is being played, which may not count; bytes of those in memory.
        self._new: dict[int, State | Ticket] = {}
        self._new_sizes: dict[int, int] = {}

    def __getitem__(self, client: int) -> State:
        kept = self._kept[client]
        if isinstance(kept, Ticket):
            raise NotHereError(
                f"the state and the model of client {client} exist only at its site: ask its owner "
                "for them, or train with a local engine"
            )
        if client in self._sizes:
            self._sizes[client] = self._sizes.pop(client)
        return kept

    def __setitem__(self, client: int, state: State) -> None:
        self.update({client: state})

    def __delitem__(self, client: int) -> None:
        del self._kept[client]
        self._sizes.pop(client, None)

    def __contains__(self, client: object) -> bool:
        return client in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Let all clients start anew."""
        self._kept.clear()
        self._sizes.clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several clients' states at once; the last given count as the most recently used.

        All files are written before any state changes, so that an interruption or a full disk
        leaves all states unchanged.

        Raises:
            OSError: A file cannot be written.
        """
        self._put(dict(*args, **kwargs))

    @property
    def tickets(self) -> dict[int, Ticket]:
        """Of the clients that store their states themselves; only the last two of each."""
        return {c: one for c, one in self._kept.items() if isinstance(one, Ticket)}

    def fill(self, job: Job) -> Job:
        """Return a client's job with what it keeps, as the engine takes it.

        Raises:
            NotHereError: The engine has no access to it.
        """
        return replace(job, kept=to(self.get(job.info.client, {}), self._device))

    def begin(self) -> None:
        """Begin a round: forget what clients keep after one that did not count."""
        self._new, self._new_sizes = {}, {}

    def take(self, result: Result) -> Result:
        """Take what a client keeps after a round, until :meth:`entered`.

        It lies in memory if there is still room under the bound, and in a file otherwise.

        Returns:
            The result without it.

        Raises:
            OSError: A file cannot be written.
        """
        client, new = result.client, result.ticket or result.kept
        if isinstance(new, Ticket) or not new:
            self._new[client] = new
        elif self._memory is None:
            self._new[client] = to(new, self._device)
        else:
            state = compact(to(new, "cpu"))
            size = nbytes(state)
            if sum(self._sizes.values()) + sum(self._new_sizes.values()) + size <= self._memory:
                self._new_sizes[client] = size
            else:
                state = self._in_file(client, state)
            self._new[client] = state
        self.rest(client)
        return replace(result, kept={})

    @contextmanager
    def entered(self, clients: Collection[int]) -> Iterator[None]:
        """Enter what some clients keep after a round; undo this if an error leaves the scope."""
        before = self._kept, self._sizes
        new = {client: state for client, state in self._new.items() if client in clients}
        try:
            self._kept = {**self._kept, **new}
            sizes = {client: size for client, size in self._sizes.items() if client not in new}
            self._sizes = sizes | {c: n for c, n in self._new_sizes.items() if c in new}
            yield
        except BaseException:
            self._kept, self._sizes = before
            raise
        finally:
            self.begin()

    def rest(self, client: int) -> None:
        """Let a client's state leave the memory if it is in a file, until it is used again."""
        if self._memory is not None and client not in self._sizes:
            kept = self._kept.get(client)
            if kept and not isinstance(kept, Ticket):
                leave_memory(kept.values())

    def digest(self, client: int) -> str:
        """Return the hash of a client's state, wherever it is; an empty text for an empty state."""
        kept = self._kept[client]
        if isinstance(kept, Ticket):
            return kept.digest
        return digest(kept) if kept else ""

    def packed(self) -> dict[str, Any]:
        """Return states and tickets in plain values, for :meth:`restore`."""
        tickets, clients = self.tickets, sorted(self)
        return {
            "kept": {c: self[c] for c in clients if c not in tickets},
            "tickets": {c: astuple(tickets[c]) for c in clients if c in tickets},
        }

    def restore(self, kept: Mapping[int, State], tickets: Mapping[int, tuple[str, int]]) -> None:
        """Enter what :meth:`packed` returned; states are copied one at a time."""
        for client, state in kept.items():
            self[client] = clone(state)
        self._put({client: Ticket(*named) for client, named in tickets.items()})

    def rows(self, shared: State) -> State:
        """Return the models that a server holds for each client; in files, beyond the bound.

        Raises:
            OSError: There is not enough space.
        """
        room = Room(nbytes(shared), self._memory, self._folder)
        return {name: room.hold(value) for name, value in shared.items()}

    def _put(self, new: dict[int, State | Ticket]) -> None:
        states = {c: one for c, one in new.items() if not isinstance(one, Ticket)}
        sizes, entries = dict[int, int](), {**new}
        if self._memory is None:
            entries |= {c: to(state, self._device) for c, state in states.items()}
        else:
            states = {c: compact(to(state, "cpu")) for c, state in states.items()}
            entries |= states
            sizes = {client: size for client, size in self._sizes.items() if client not in new}
            sizes |= {client: nbytes(state) for client, state in states.items()}
            size = sum(sizes.values())
            while size > self._memory:
                client = next(iter(sizes))
                size -= sizes.pop(client)
                state = states[client] if client in states else self[client]
                entries[client] = self._in_file(client, state)
        self._kept |= entries
        self._sizes = sizes

    def _in_file(self, client: int, state: State) -> State:
        """Return a state with its values in a file that is freed together with them."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".kept-", dir=self._folder)
        os.close(handle)
        file = Path(name)
        try:
            container.write(file, None, state, synced=False)
            return container.read(file, checked=False, own=True)[1]
        except OSError as error:
            raise OSError(f"client {client}'s state: {error}") from error
        finally:
            file.unlink(missing_ok=True)
