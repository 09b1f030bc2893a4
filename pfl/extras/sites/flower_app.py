"""Our app in Flower's processes: ``server`` and ``client``.

Both forward messages without reading them; see :mod:`pfl.extras.sites.relay`. An app refers to the
installed package, so that no code is sent to a site. Flower is imported only when it loads them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from pfl.extras.sites.relay import LineError, ask, relay

# Flower reads the names of its components here.
__all__ = ["client", "server"]  # noqa: F822 (see __getattr__)

# An object of Flower; its types are not available here, as Flower is optional.
Flower: TypeAlias = Any
_RECORD = "pfl"


def __getattr__(name: str) -> Flower:
    if name == "server":
        server: Flower = import_module("flwr.serverapp").ServerApp()
        server.main()(_serve)
        return server
    if name == "client":
        client: Flower = import_module("flwr.clientapp").ClientApp()
        client.query()(_answer)
        return client
    raise AttributeError(name)


def _serve(grid: Flower, context: Flower) -> None:
    """Relay messages until the run is over."""
    settings = context.run_config
    seconds, count = float(settings["answer-seconds"]), int(settings["sites"])
    message = import_module("flwr.app").Message

    def addresses() -> list[str]:
        return [f"node {node}" for node in grid.get_node_ids()]

    def send(address: str, verb: str, content: bytes) -> bytes:
        node = int(address.removeprefix("node "))
        sent = message(_packed(verb, content), node, "query")
        replies = list(grid.send_and_receive([sent], timeout=seconds))
        if not replies:
            raise LineError(f"there was no answer within {seconds:g} seconds")
        if replies[0].has_error():
            # Flower's further sentences guess at causes.
            raise LineError(str(replies[0].error.reason).partition(". ")[0])
        said = replies[0].content[_RECORD]
        if said["verb"] == "error":
            raise LineError(said["content"].decode())
        answer: bytes = said["content"]
        return answer

    # A node has a new random number at each start.
    relay(Path(str(settings["folder"])), count, addresses, send)


def _answer(message: Flower, context: Flower) -> Flower:
    """Forward a message to the process of the site."""
    asked = message.content[_RECORD]
    try:
        socket = context.node_config.get("socket")
        if socket is None:
            raise LineError("there is no site here: start Flower's SuperNode with pfl site")
        answered = _packed(
            asked["verb"], ask(Path(socket), "pfl site", {"verb": asked["verb"]}, asked["content"])
        )
    except LineError as error:
        answered = _packed("error", str(error).encode())
    return import_module("flwr.app").Message(answered, reply_to=message)


def _packed(verb: str, content: bytes) -> Flower:
    flwr = import_module("flwr.app")
    return flwr.RecordDict({_RECORD: flwr.ConfigRecord({"verb": verb, "content": content})})
