"""The states that a site keeps on disk, in two versions."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from pfl.core.state import clone, digest
from pfl.core.types import State, Ticket
from pfl.disk import container
from pfl.disk.container import ContainerError
from pfl.disk.lock import locked
from pfl.disk.writing import no_link
from pfl.extras.sites.transport import LostStateError

_FILE = re.compile(r"(\d{1,9})-([0-9a-f]{64})\.state")
_SCRATCH = re.compile(rf"\.{_FILE.pattern}\.\d+")


class KeptVersions:
    """A client's kept states of its last two participations.

    If the server is killed during a round, its checkpoint refers to the earlier one.

    Args:
        folder: Folder of the files, created if missing. Until :meth:`close`, no other process can
            use it.

    Raises:
        BusyError: Another site uses the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._scope = ExitStack()
        self._scope.enter_context(locked(no_link(folder)))
        self.folder = folder
        # Left behind by a killed process.
        for file in folder.iterdir():
            if _SCRATCH.fullmatch(file.name):
                file.unlink()

    def close(self) -> None:
        """Release the folder for other processes."""
        self._scope.close()

    def versions(self) -> list[Ticket]:
        """Return references to the stored states, oldest first."""
        named = (_FILE.fullmatch(file.name) for file in self.folder.iterdir())
        return sorted(
            (Ticket(one[2], int(one[1])) for one in named if one), key=lambda ref: ref.round
        )

    def load(self, wanted: Ticket) -> State:
        """Return a stored state, on the CPU.

        Raises:
            LostStateError: The state is missing or was changed.
        """
        path = self._path(wanted)
        if not path.is_file() or path.is_symlink():
            have = ", ".join(str(one.round) for one in self.versions()) or "none"
            raise LostStateError(
                f"the state of round {wanted.round} ({wanted.digest[:16]}) is missing; "
                f"rounds that are stored: {have}"
            )
        try:
            state = clone(container.read(path)[1])
        except ContainerError as error:
            # Do not reveal the folder's path to a server.
            raise LostStateError(f"{path.name} is damaged: {error.__cause__}") from error
        if digest(state) != wanted.digest:
            raise LostStateError(f"{path.name} is damaged: it holds another state")
        return state

    def store(self, state: State, number: int, before: Ticket | None) -> Ticket:
        """Store the state of a round, and remove all others except its predecessor.

        Raises:
            OSError: The state cannot be written.
        """
        new = Ticket(digest(state), number)
        container.write(self._path(new), {"round": number}, state)
        for old in self.versions():
            if old not in (new, before):
                self._path(old).unlink(missing_ok=True)
        return new

    def _path(self, reference: Ticket) -> Path:
        return self.folder / f"{reference.round}-{reference.digest}.state"
