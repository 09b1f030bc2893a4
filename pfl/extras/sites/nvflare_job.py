"""Our job in NVFlare's processes, called through its Collab API.

Both classes forward messages without reading them; see :mod:`pfl.extras.sites.relay`. A job refers
to the installed package, so that no code is sent to a site.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from pfl.extras.sites.relay import SITE_SOCKET, ask, relay

# NVFlare is optional, so that its types are not available here.
Facade: TypeAlias = Any


class ServerHalf:
    """The server's part: calls the sites for a run on this machine.

    Args:
        folder: Folder of the run's :class:`~pfl.extras.sites.relay.RelayTransport`.
        seconds: Longest time for a site's answer.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self._collab = _collab()
        self.run = self._collab.main(self._run)

    def _run(self) -> None:
        """Relay messages until the run is over."""
        proxies = {proxy.name: proxy for proxy in self._collab.clients}

        def send(name: str, verb: str, content: bytes) -> bytes:
            answer: bytes = proxies[name](timeout=self.seconds).answer(verb=verb, content=content)
            return answer

        relay(Path(self.folder), len(proxies), lambda: sorted(proxies), send)


class SiteHalf:
    """The client's part: forwards messages to the process of the site."""

    def __init__(self) -> None:
        self._collab = _collab()
        self.answer = self._collab.publish(self._answer)

    def _answer(self, verb: str, content: bytes) -> bytes:
        """Return the site's answer to a message."""
        if SITE_SOCKET not in os.environ:
            raise LookupError("there is no site here: start NVFlare's client with pfl site")
        header = {"site": self._collab.site_name, "verb": verb}
        return ask(Path(os.environ[SITE_SOCKET]), "pfl site", header, content)


def _collab() -> Facade:
    return import_module("nvflare.collab").collab
