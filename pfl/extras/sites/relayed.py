"""The base of engines whose messages a framework carries, through a relay on this machine."""

from __future__ import annotations

from abc import abstractmethod
from importlib.util import find_spec
from typing import Any, ClassVar

from pfl.core.checks import at_least_one, positive
from pfl.core.held_out import members
from pfl.extras.sites.engine import RemoteEngine
from pfl.extras.sites.relay import Switchboard, Trouble
from pfl.extras.sites.transport import Transport
from pfl.training.context import Context


class RelayedEngine(RemoteEngine):
    """An engine whose messages a framework carries; it implements :meth:`start`.

    Attributes:
        package: The framework's package.

    Args:
        sites: Number of sites to wait for; ``None`` waits for one for each client of the data.
        answer_seconds: Longest time that a site may take for an answer.
        start_seconds: Longest time until all sites are there.
        options: As for :class:`~pfl.extras.sites.engine.RemoteEngine`.

    Raises:
        ImportError: The framework is not installed.
        ValueError: A number is out of its range.
    """

    package: ClassVar[str]

    def __init__(
        self,
        sites: int | None = None,
        answer_seconds: float = 600.0,
        start_seconds: float = 300.0,
        **options: Any,
    ) -> None:
        at_least_one(sites=sites)
        positive(answer_seconds=answer_seconds, start_seconds=start_seconds)
        super().__init__(**options)
        if find_spec(self.package) is None:
            raise ImportError(
                f"the {self.name} engine needs the package {self.package}: "
                f"pip install 'pfl-lightning[{self.name}]'"
            )
        self.sites, self.answer_seconds, self.start_seconds = sites, answer_seconds, start_seconds

    @abstractmethod
    def start(self, board: Switchboard, context: Context, count: int) -> Trouble | None:
        """Have the framework start a relay, and note in ``board.scope`` how it ends.

        Args:
            board: What the relay connects with the sites.
            context: The method and the data.
            count: Number of sites to wait for.

        Returns:
            A function that returns why the relay will not come, where that is known.

        Raises:
            SiteError: The framework refuses.
        """

    def open_transport(self, context: Context) -> Transport:
        """Start a relay, and wait for its sites."""
        board = Switchboard()
        try:
            trouble = self.start(board, context, self.sites or len(members(context.data)))
            board.wait(self.start_seconds, trouble)
        except BaseException:
            board.close()
            raise
        return board
