"""What rooms change of the commands on a run, by flags of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pfl.imports.plugins import loaded

if TYPE_CHECKING:
    from pfl.cli.config import Experiment
    from pfl.core.sheet import Sheet


class Change(Protocol):
    """What a room does with the experiment of a command on a run, if its flags are given."""

    def apply(self, experiment: Experiment) -> None:
        """Change the experiment.

        Raises:
            UsageError: It cannot be changed so.
        """

    def sheets(self, experiment: Experiment, source: str) -> list[Sheet]:
        """Return the tables of pfl test in the place of scores; ``source`` is the checkpoint."""


def changed(command: str, argv: Sequence[str]) -> tuple[list[str], Change | None]:
    """Return a command line without the flags of the room that takes them, and what it does.

    Rooms and plug-ins do so by a function of both in the group ``pfl.changes`` of entry points.

    Raises:
        UsageError: The flags are wrong.
    """
    words = [*argv]
    for plugin, take in loaded("pfl.changes"):
        with plugin.noted():
            left, change = take(command, [*words])
            if change is not None:
                return left, change
            words = left
    return words, None
