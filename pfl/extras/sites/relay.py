"""Connections between processes of one machine, for frameworks that start their own processes.

NVFlare and Flower carry messages between a server and its sites, and start a process at both ends.
These have neither data nor model: each forwards messages to ``pfl fit`` or ``pfl site``, over a
socket in a folder that only the user may enter. This module has no heavy imports, as Flower starts
a process for each message.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from typing import Any, TypeAlias

from pfl.extras.sites.transport import SiteError, Transport, Verb

# Environment variable: socket of the process of a site.
SITE_SOCKET = "PFL_SITE_SOCKET"
# Largest number of bytes of a request's header and of its content.
HEADER, CONTENT = 2**16, 2**33
# Longest path of a folder of sockets; systems allow at most 107 characters for a socket.
_LONGEST = 80

# Seconds between a server's checks whether it was closed.
_GLANCE = 0.1

Line: TypeAlias = "Connection[Any, Any]"
Header: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[Header, bytes], bytes]
# Returns why a relay will not connect, if known.
Trouble: TypeAlias = Callable[[], str | None]


class LineError(OSError):
    """The process at the other end of a connection has ended or reports an error."""


def private_folder() -> Path:
    """Create a temporary folder that only the user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="pfl-"))
    if len(str(folder)) > _LONGEST:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="pfl-", dir="/tmp"))
    return folder


def ask(path: Path, whose: str, header: Header, content: bytes = b"") -> bytes:
    """Send a request to the socket of another process, and return the answer.

    Args:
        path: Socket of the process.
        whose: Name of the process, for messages.
        header: Header of the request.
        content: Content of the request.

    Raises:
        LineError: There is no answer, or it is an error.
    """
    try:
        with Client(str(path), "AF_UNIX") as line:
            _send(line, header, content)
            said, answer = _receive(line)
    except (OSError, EOFError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LineError(f"{whose} has ended ({why})") from error
    if said.get("error"):
        raise LineError(str(said["error"]))
    return answer


class SocketServer(ThreadingTCPServer):
    """A server at a local socket, which answers each request in its own thread.

    Args:
        path: Path of the socket, in a folder that only the user may enter.
        answer: Function from header and content to the answer; errors are returned as messages.

    Raises:
        OSError: The path exists.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path, self._answer = path, answer
        # Not set on the class: some systems have no such sockets.
        self.address_family = socket.AF_UNIX
        super().__init__(str(path), BaseRequestHandler)  # type: ignore[arg-type]
        Thread(target=self.serve_forever, args=(_GLANCE,), name="pfl-socket", daemon=True).start()

    def close(self) -> None:
        """Stop answering requests."""
        self.shutdown()
        self.server_close()
        self.path.unlink(missing_ok=True)

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer one request."""
        line: Line = Connection(request.detach())
        # The other process may end at any time.
        with line, suppress(OSError, EOFError, ValueError):
            header, content = _receive(line)
            try:
                said, answer = {}, self._answer(header, content)
            except Exception as error:
                said, answer = {"error": str(error) or type(error).__name__}, b""
            _send(line, said, answer)


_RUN, _RELAY = "run", "relay"
_PAUSE = 0.5  # seconds


def relay(
    folder: Path,
    count: int,
    addresses: Callable[[], Collection[str]],
    send: Callable[[str, str, bytes], bytes],
) -> None:
    """Connect a waiting run with its sites until the run ends.

    A framework's process on the server's machine calls this.

    Args:
        folder: Folder of the run's :class:`RelayTransport`.
        count: Number of sites to wait for.
        addresses: Returns the current addresses.
        send: Sends a verb and a message to an address, and returns the answer.

    Raises:
        LineError: The run has ended.
    """
    clients: dict[str, int] = {}
    sites: dict[int, str] = {}

    def find() -> bool:
        """Request new addresses' clients; return ``True`` if all sites are connected."""
        there = addresses()
        for address in there:
            if address not in clients:
                with suppress(LineError):  # Remains of a killed site.
                    clients[address] = int(send(address, "who", b""))
        located = distinct({address: clients[address] for address in there if address in clients})
        sites.update(located)
        return len(located) >= count

    def call(header: Header, content: bytes) -> bytes:
        client = header["client"]
        if sites[client] not in addresses():
            find()  # A restarted site may have another address.
            if sites[client] not in addresses():
                raise LineError("it has left the federation")
        return send(sites[client], header["verb"], content)

    try:
        while not find():
            # Ends this process as well once the run has ended.
            ask(folder / _RUN, "pfl fit", {"still": "waiting"})
            time.sleep(_PAUSE)
    except LineError:
        raise
    except Exception as error:
        ask(folder / _RUN, "pfl fit", {"failed": str(error) or type(error).__name__})
        return
    server = SocketServer(folder / _RELAY, call)
    try:
        # Answered when the run ends.
        ask(folder / _RUN, "pfl fit", {"sites": [*sites.items()]})
    finally:
        server.close()


class RelayTransport(Transport):
    """A transport through a relay in a framework's process on this machine.

    Attributes:
        folder: Folder of its sockets, removed at the end.
        scope: Resources to release at the end, after the relay.
    """

    def __init__(self) -> None:
        self.folder, self.scope = private_folder(), ExitStack()
        self.scope.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._sites: dict[int, str] = {}
        self._failed: str | None = None
        self._heard, self._over = Event(), Event()
        self.scope.callback(SocketServer(self.folder / _RUN, self._hear).close)

    def wait(self, seconds: float, trouble: Trouble | None = None) -> None:
        """Wait for the relay, for at most a number of seconds.

        Raises:
            SiteError: It does not connect or does not find the sites.
        """
        until = time.monotonic() + seconds
        while not self._heard.wait(0.2):
            why = None if trouble is None else trouble()
            if why is None and time.monotonic() > until:
                why = f"not all sites connected within {seconds:g} seconds"
            if why is not None and not self._heard.is_set():
                raise SiteError(why)
        if self._failed is not None:
            raise SiteError(self._failed)

    def sites(self) -> Mapping[int, str]:
        """Return the address of each client."""
        return self._sites

    def call(self, client: int, verb: Verb, content: bytes) -> bytes:
        """Send a message to a client's site and return its answer."""
        try:
            return ask(self.folder / _RELAY, "the relay", {"client": client, "verb": verb}, content)
        except LineError as error:
            raise SiteError(str(error)) from error

    def close(self) -> None:
        """End the relay; sites may continue."""
        self._over.set()
        self.scope.close()

    def _hear(self, header: Header, content: bytes) -> bytes:
        """Record the relay's reports, and keep it waiting until the run ends."""
        if "still" in header:
            return b""
        self._failed = header.get("failed")
        self._sites = {int(client): str(name) for client, name in header.get("sites", ())}
        self._heard.set()
        if self._failed is None:
            self._over.wait()
        return b""


def distinct(clients: Mapping[str, int]) -> dict[int, str]:
    """Invert a mapping from addresses to clients.

    Raises:
        ValueError: Two sites are the same client.
    """
    sites: dict[int, str] = {}
    for address, client in clients.items():
        if client in sites:
            raise ValueError(
                f"two sites claim to be client {client}: {sites[client]} and {address}; "
                "stop one of them"
            )
        sites[client] = address
    return sites


def _send(line: Line, header: Header, content: bytes) -> None:
    line.send_bytes(json.dumps(header).encode())
    line.send_bytes(content)


def _receive(line: Line) -> tuple[Header, bytes]:
    header = json.loads(line.recv_bytes(HEADER))
    if not isinstance(header, dict):
        raise ValueError("expected a header of keys and values")
    return header, line.recv_bytes(CONTENT)
