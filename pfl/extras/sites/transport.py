"""The interface of transports, which carry bytes to sites and back, and their errors."""

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
    """A carrier of messages between server and sites, which does not read them."""

    def sites(self) -> Mapping[int, str]:
        """Return the address of each reachable client, for messages to the user."""

    def call(self, client: int, verb: Verb, content: bytes) -> bytes:
        """Send a message to a client's site and return its answer.

        Several threads call it concurrently, each for a different client.

        Raises:
            SiteError: The site cannot be reached or did not answer in time.
        """

    def close(self) -> None:
        """Release the transport's resources; sites may continue."""
