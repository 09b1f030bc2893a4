"""Sites in threads of this process, which exchange bytes as remote ones do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from pfl.core.data import members
from pfl.engines import threads
from pfl.extras.sites.engine import RemoteEngine
from pfl.extras.sites.keeper import TemporaryKeeper
from pfl.extras.sites.site import Site
from pfl.extras.sites.transport import SiteError, Transport, Verb
from pfl.training.contexts import Contexts
from pfl.training.inventory import check_states


class Loopback(Transport):
    """A transport to sites in this process.

    Args:
        sites: Sites by client.
        together: Whether several sites may work at a time.
        folder: Temporary folder of the sites, removed at the end.
    """

    def __init__(
        self,
        sites: Mapping[int, Site],
        together: bool = True,
        folder: TemporaryDirectory[str] | None = None,
    ) -> None:
        self._sites, self._folder = dict(sites), folder
        self._turn: AbstractContextManager[object] = nullcontext() if together else Lock()

    def sites(self) -> Mapping[int, str]:
        """Return the address of each client."""
        return dict.fromkeys(self._sites, "loopback")

    def call(self, client: int, verb: Verb, content: bytes) -> bytes:
        """Send a message to a client's site and return its answer."""
        if client not in self._sites:
            raise SiteError(f"there is no site for client {client}")
        with self._turn:
            return self._sites[client].answer(verb, content)

    def close(self) -> None:
        """Close the sites."""
        for site in self._sites.values():
            site.close()
        if self._folder is not None:
            self._folder.cleanup()


class LoopbackEngine(RemoteEngine):
    """An engine with one site per client in this process, for tests of messages.

    It is bit-identical to the sequential engine.

    Args:
        folder: Parent of the sites' folders of kept states; ``None`` for a temporary one.
        options: As for :class:`~pfl.extras.sites.engine.RemoteEngine`.

    Raises:
        ValueError: See :class:`~pfl.extras.sites.engine.RemoteEngine`.
    """

    name = "loopback"
    real = False

    def __init__(self, folder: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.folder = folder
        if folder is None:
            self.keeper = TemporaryKeeper

    def open_transport(self, contexts: Contexts) -> Transport:
        """Return a transport to a site for each client that trains."""
        temporary = None if self.folder else TemporaryDirectory(prefix="pfl-sites-")
        folder = Path(self.folder or temporary.name)  # type: ignore[union-attr]
        clients = members(contexts.data)
        together = threads.unsupported_reason(contexts, len(clients)) is None
        return Loopback(made(contexts, clients, folder, together), together, temporary)


def made(
    contexts: Contexts, clients: Sequence[int], folder: Path, together: bool = False
) -> dict[int, Site]:
    """Return a site for each client, with its own copy of the module and its own folder.

    Args:
        contexts: The method with its data.
        clients: The clients.
        folder: Parent of the sites' folders.
        together: Whether several sites may work at a time.
    """
    check_states(contexts)
    return {
        client: Site(contexts.replica(beside_others=together), client, folder / str(client))
        for client in clients
    }
