"""Base of the engines that reach sites through a framework and a local relay."""

from __future__ import annotations

from abc import abstractmethod
from importlib.util import find_spec
from typing import Any, ClassVar

from pfl.core.checks import at_least_one, positive
from pfl.core.data import members
from pfl.extras.sites.engine import RemoteEngine
from pfl.extras.sites.relay import RelayTransport, Trouble
from pfl.extras.sites.transport import Transport
from pfl.training.contexts import Contexts


class RelayedEngine(RemoteEngine):
    """An engine that reaches sites through a framework; subclasses implement :meth:`start`.

    Attributes:
        package: Package of the framework.

    Args:
        sites: Number of sites to wait for; ``None`` for one per client of the data.
        answer_seconds: Longest time for a site's answer.
        start_seconds: Longest time until all sites are connected.
        options: As for :class:`~pfl.extras.sites.engine.RemoteEngine`.

    Raises:
        ImportError: The framework is not installed.
        ValueError: A number is out of range.
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
    def start(self, transport: RelayTransport, contexts: Contexts, count: int) -> Trouble | None:
        """Start a relay through the framework, and add its end to ``transport.scope``.

        Args:
            transport: Transport that the relay connects to the sites.
            contexts: The method and the data.
            count: Number of sites to wait for.

        Returns:
            A function that returns why the relay will not connect, if known.

        Raises:
            SiteError: The framework refuses.
        """

    def open_transport(self, contexts: Contexts) -> Transport:
        """Start a relay, and wait for its sites."""
        transport = RelayTransport()
        try:
            trouble = self.start(transport, contexts, self.sites or len(members(contexts.data)))
            transport.wait(self.start_seconds, trouble)
        except BaseException:
            transport.close()
            raise
        return transport
