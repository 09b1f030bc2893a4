"""Lines between the processes of one machine, for frameworks that start processes of their own.

NVFlare and Flower carry messages between a server and its sites, and start a process for the job at
both ends. These hold neither the data nor a model: each passes messages on to the process that
does, ``pfl fit`` or ``pfl site``, over a socket in a folder that only their user may enter. This
module imports nothing heavy, as Flower starts a process for each message.
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

# Environment variable: the door of the process that holds a site.
DOOR = "PFL_SITE_DOOR"
# Largest number of bytes of a question's header and of its content.
HEADER, CONTENT = 2**16, 2**33
# Longest path of a folder of sockets; no system takes more than 107 characters for a socket.
_LONGEST = 80

# Seconds after which a door looks whether it is still open.
_GLANCE = 0.1

Line: TypeAlias = "Connection[Any, Any]"
Header: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[Header, bytes], bytes]
# Returns why a relay will not come, where that is known.
Trouble: TypeAlias = Callable[[], str | None]


class LineError(OSError):
    """The process at the other end of a line is gone, or reports an error."""


def private_folder() -> Path:
    """Make and return a temporary folder that only the user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="pfl-"))
    if len(str(folder)) > _LONGEST:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="pfl-", dir="/tmp"))
    return folder


def ask(door: Path, whose: str, header: Header, content: bytes = b"") -> bytes:
    """Ask a question at a door of another process, and return the answer.

    Args:
        door: The door.
        whose: The process, for people.
        header: The question.
        content: What is sent with it.

    Raises:
        LineError: Nobody answers, or the answer is an error.
    """
    try:
        with Client(str(door), "AF_UNIX") as line:
            _send(line, header, content)
            said, answer = _receive(line)
    except (OSError, EOFError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LineError(f"{whose} has ended ({why})") from error
    if said.get("error"):
        raise LineError(str(said["error"]))
    return answer


class Door(ThreadingTCPServer):
    """A server at a socket of this machine, which answers each question in a thread of its own.

    Args:
        path: Of the socket, in a folder that only the user may enter.
        answer: Returns the answer to a header and a content; its errors are returned in words.

    Raises:
        OSError: There is something at the path.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path, self._answer = path, answer
        # Not on the class: some systems have no such sockets.
        self.address_family = socket.AF_UNIX
        super().__init__(str(path), BaseRequestHandler)  # type: ignore[arg-type]
        Thread(target=self.serve_forever, args=(_GLANCE,), name="pfl-door", daemon=True).start()

    def close(self) -> None:
        """Answer no further question."""
        self.shutdown()
        self.server_close()
        self.path.unlink(missing_ok=True)

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer the question of one caller."""
        line: Line = Connection(request.detach())
        # The other process may be gone at any time.
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
    """Connect the run that waits at a folder with its sites, until the run is over.

    It is called by a framework's process on the server's machine.

    Args:
        folder: That of the run's :class:`Switchboard`.
        count: Number of sites to wait for.
        addresses: Returns the addresses that are there.
        send: Sends a verb and a message to an address and returns the answer.

    Raises:
        LineError: The run has gone.
    """
    clients: dict[str, int] = {}
    sites: dict[int, str] = {}

    def find() -> bool:
        """Ask new addresses for their clients; return ``True`` if all sites are there."""
        there = addresses()
        for address in there:
            if address not in clients:
                with suppress(LineError):  # What is left of a site that was killed.
                    clients[address] = int(send(address, "who", b""))
        located = distinct({address: clients[address] for address in there if address in clients})
        sites.update(located)
        return len(located) >= count

    def call(header: Header, content: bytes) -> bytes:
        client = header["client"]
        if sites[client] not in addresses():
            find()  # A site that was started anew may have another address.
            if sites[client] not in addresses():
                raise LineError("it has left the federation")
        return send(sites[client], header["verb"], content)

    try:
        while not find():
            # Ends this process as well once the run has gone.
            ask(folder / _RUN, "pfl fit", {"still": "waiting"})
            time.sleep(_PAUSE)
    except LineError:
        raise
    except Exception as error:
        ask(folder / _RUN, "pfl fit", {"failed": str(error) or type(error).__name__})
        return
    door = Door(folder / _RELAY, call)
    try:
        # It is answered when the run is over.
        ask(folder / _RUN, "pfl fit", {"sites": [*sites.items()]})
    finally:
        door.close()


class Switchboard(Transport):
    """Reaches sites through a relay in a framework's process on this machine.

    Attributes:
        folder: Where the relay finds it; it goes with the switchboard.
        scope: What ends with the switchboard, right after the relay.
    """

    def __init__(self) -> None:
        self.folder, self.scope = private_folder(), ExitStack()
        self.scope.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._sites: dict[int, str] = {}
        self._failed: str | None = None
        self._heard, self._over = Event(), Event()
        self.scope.callback(Door(self.folder / _RUN, self._hear).close)

    def wait(self, seconds: float, trouble: Trouble | None = None) -> None:
        """Wait for the relay for a number of seconds at most.

        Raises:
            SiteError: It does not come, or does not find the sites.
        """
        until = time.monotonic() + seconds
        while not self._heard.wait(0.2):
            why = None if trouble is None else trouble()
            if why is None and time.monotonic() > until:
                why = f"not all sites were there within {seconds:g} seconds"
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
        """Let the relay end; sites may live on."""
        self._over.set()
        self.scope.close()

    def _hear(self, header: Header, content: bytes) -> bytes:
        """Note what the relay reports; keep it waiting until the run is over."""
        if "still" in header:
            return b""
        self._failed = header.get("failed")
        self._sites = {int(client): str(name) for client, name in header.get("sites", ())}
        self._heard.set()
        if self._failed is None:
            self._over.wait()
        return b""


def distinct(clients: Mapping[str, int]) -> dict[int, str]:
    """Return the address of each client, from the client of each address.

    Raises:
        ValueError: Two sites are the same client.
    """
    sites: dict[int, str] = {}
    for address, client in clients.items():
        if client in sites:
            raise ValueError(
                f"two sites say that they are client {client}: {sites[client]} and {address}; "
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
        raise ValueError("a header is keys and values")
    return header, line.recv_bytes(CONTENT)
