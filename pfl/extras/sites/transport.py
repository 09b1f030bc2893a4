"""The interface of transports, which carry bytes to sites and back, and what can go wrong there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

Verb: TypeAlias = Literal["hello", "train", "test", "bye"]


class SiteError(OSError):
    """A site does not answer, or refuses a request; the message names it."""


class GoneError(SiteError):
    """A site did not answer, or its answer was damaged."""


class LostStateError(SiteError):
    """A site no longer has the state that a client kept."""


class Transport(Protocol):
    """Carries messages between the server and the sites, and never looks into them."""

    def sites(self) -> Mapping[int, str]:
        """Return the address of each client that can be reached, for messages to people."""

    def call(self, client: int, verb: Verb, content: bytes) -> bytes:
        """Send a message to a client's site and return its answer.

        Several threads call at the same time, each for another client.

        Raises:
            SiteError: The site cannot be reached, or did not answer in time.
        """

    def close(self) -> None:
        """Release what the transport holds; sites may live on."""
