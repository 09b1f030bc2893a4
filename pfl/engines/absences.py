"""Clients that fail in a round, and how an engine handles their errors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Literal, TypeAlias

from pfl.core.checks import one_of
from pfl.core.types import NO_CLIENT, Job

OnError: TypeAlias = Literal["stop", "absent"]
_LONGEST = 400  # characters of a reason


class Absences:
    """The clients that are absent because their jobs failed.

    A client that fails is absent for the rest of the round, and takes part again in the next.

    Args:
        errors: The errors after which a round continues without the client; others end the run.
    """

    def __init__(self, *errors: type[Exception]) -> None:
        self._errors = errors
        self.clear()

    def clear(self) -> None:
        """Forget everything, before a run."""
        self._round = -1
        self._now: set[int] = set()
        self._lasting: set[int] = set()
        self._failed: dict[int, str] = {}

    def begin(self, jobs: Sequence[Job]) -> None:
        """Let all clients take part again if these jobs belong to another round."""
        for job in jobs[:1]:
            if job.info.round != self._round:
                self._round = job.info.round
                self._now.clear()

    def __contains__(self, client: int) -> bool:
        return client in self._now

    def note(self, job: Job, error: Exception) -> None:
        """Note that a client is absent, with a warning at the first of consecutive rounds.

        Raises:
            Exception: The error, if it ends the run.
        """
        client, reason = job.info.client, _line(error)
        self._now.add(client)
        # The common test set belongs to no client.
        if client == NO_CLIENT or not isinstance(error, self._errors):
            raise error
        self._failed[client] = reason
        if client not in self._lasting:
            self._lasting.add(client)
            warnings.warn(
                f"round {job.info.round} continues without client {client}: {reason}", stacklevel=2
            )

    def answered(self, client: int) -> None:
        """Note that a client has answered."""
        self._lasting.discard(client)

    def taken(self) -> Mapping[int, str]:
        """Return why clients have failed since the last call."""
        failed, self._failed = self._failed, {}
        return failed


def tolerated(on_error: OnError, *errors: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors of a client's job after which a round continues without it.

    Raises:
        ValueError: ``on_error`` is unknown.
    """
    one_of("on_error", on_error, ("stop", "absent"))
    return errors if on_error == "absent" else ()


def _line(error: Exception) -> str:
    """Return an error's message in one line; part of it may come from another machine."""
    text = "".join(one if one.isprintable() else " " for one in str(error))
    return shorten(text, _LONGEST)
