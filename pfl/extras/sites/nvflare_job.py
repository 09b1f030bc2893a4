"""The two halves of a job in NVFlare's processes, which its Collab API calls.

Both pass messages on and look into none; see :mod:`pfl.extras.sites.relay`. A job names them as
parts of the installed package, and so brings no code to a site.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from pfl.extras.sites.relay import DOOR, ask, relay

# NVFlare is optional, so its types cannot be named here.
Facade: TypeAlias = Any


class ServerHalf:
    """Calls the sites for the run that waits at a folder of this machine.

    Args:
        folder: That of the run's :class:`~pfl.extras.sites.relay.Switchboard`.
        seconds: Longest time that a site may take for an answer.
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
    """Passes messages on to the process that holds the site."""

    def __init__(self) -> None:
        self._collab = _collab()
        self.answer = self._collab.publish(self._answer)

    def _answer(self, verb: str, content: bytes) -> bytes:
        """Return the site's answer to a message."""
        if DOOR not in os.environ:
            raise LookupError("no site is here: start NVFlare's client with pfl site")
        header = {"site": self._collab.site_name, "verb": verb}
        return ask(Path(os.environ[DOOR]), "pfl site", header, content)


def _collab() -> Facade:
    return import_module("nvflare.collab").collab
