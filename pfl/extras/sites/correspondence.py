"""The server's messages to its sites: each is sent, its answer read, and both are counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

from pfl.core.failure import JobError
from pfl.disk.container import ContainerError
from pfl.engines.transport import wire
from pfl.extras.sites.answers import AnswerError
from pfl.extras.sites.transport import GoneError, LostStateError, SiteError, Transport, Verb

FormT = TypeVar("FormT")
Check: TypeAlias = Callable[[FormT, wire.Tensors], None]


class Correspondence:
    """What passes between a server and its sites; several threads may ask at a time.

    Attributes:
        sites: The address of each client.
        pool: Threads in which sites are asked.

    Args:
        transport: Carries the messages.
        workers: Sites that are asked at a time; ``None`` asks all.
    """

    def __init__(self, transport: Transport, workers: int | None) -> None:
        self.sites: Mapping[int, str] = dict(transport.sites())
        self.pool = ThreadPoolExecutor(workers or max(1, len(self.sites)), "pfl-site")
        self._transport = transport
        self._lock = threading.Lock()
        self._sent = self._received = 0

    def ask(
        self,
        client: int,
        verb: Verb,
        form: type[FormT],
        content: bytes,
        check: Check[FormT] | None = None,
    ) -> tuple[FormT, wire.Tensors]:
        """Send a message to a site and read its answer, a record of that form.

        ``check`` raises :class:`AnswerError` if the answer does not fit the message.

        Raises:
            GoneError: There is no answer, or it is damaged or does not fit.
            LostStateError: The site does not have the client's state.
            SiteError: The site refuses.
            JobError: The method failed at the site.
        """
        where = f"the site of client {client} ({self.sites[client]})"
        try:
            data = self._transport.call(client, verb, content)
            with self._lock:
                self._sent += len(content)
                self._received += len(data)
            record, tensors = wire.read(verb, form, data)
            if check is not None and not isinstance(record, wire.Failure):
                check(record, tensors)
        except (ContainerError, AnswerError) as error:
            raise GoneError(f"{where} sent no answer to {verb}: {error}") from error
        except SiteError as error:
            raise GoneError(f"site {client} is gone ({self.sites[client]}): {error}") from error
        if not isinstance(record, wire.Failure):
            return record, tensors
        if record.kind == "failed":
            raise JobError(f"{record.message}, at {where}")
        if record.kind == "lost":
            raise LostStateError(
                f"{where} has lost what client {client} keeps: {record.message}; put its files "
                "back, or set on_lost to initial"
            )
        raise SiteError(f"{where} refuses {verb}: {record.message}")

    def counted(self) -> dict[str, float]:
        """Return the bytes of messages since the last call, down to sites and up from them."""
        with self._lock:
            counts = {"comm/wire_down": float(self._sent), "comm/wire_up": float(self._received)}
            self._sent = self._received = 0
        return counts

    def close(self) -> None:
        """Close the transport, once all sites have been answered."""
        self.pool.shutdown()
        self._transport.close()
