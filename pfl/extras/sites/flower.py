"""The engine that reaches sites through Flower."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import shorten
from typing import Any

from pfl.extras.sites.relay import RelayTransport
from pfl.extras.sites.relayed import RelayedEngine
from pfl.extras.sites.transport import SiteError
from pfl.training.contexts import Contexts

# Our runs must not send usage statistics or check for newer versions.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_COMMAND_SECONDS = 120.0
_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "pfl-app"
version = "1.0.0"
description = "Carries the rounds of pfl fit."
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.43"]

[tool.flwr.app]
publisher = "pfl"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "pfl.extras.sites.flower_app:server"
clientapp = "pfl.extras.sites.flower_app:client"

[tool.flwr.app.config]
folder = {folder}
sites = {sites}
answer-seconds = {seconds}
"""


class FlowerEngine(RelayedEngine):
    """An engine whose sites are SuperNodes of Flower; bit-identical to the sequential engine.

    The SuperLink runs on this machine; the sites are started by ``pfl site``.

    Args:
        superlink: Name of the connection in Flower's own configuration, which has the SuperLink's
            address and certificates; ``None`` for Flower's default.
        options: As for :class:`~pfl.extras.sites.relayed.RelayedEngine`.

    Raises:
        ImportError: Flower is not installed.
        ValueError: A number is out of range.
    """

    name, package = "flower", "flwr"

    def __init__(self, superlink: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.superlink = superlink

    def start(self, transport: RelayTransport, contexts: Contexts, count: int) -> None:
        """Submit our app to the SuperLink."""
        app = transport.folder / "app"
        app.mkdir()
        text = _APP.format(
            folder=json.dumps(str(transport.folder)),
            sites=count,
            seconds=float(self.answer_seconds),
        )
        (app / "pyproject.toml").write_text(text)
        (app / "LICENSE").write_text("Apache-2.0\n")
        command = [str(Path(sys.executable).with_name("flwr")), "run", str(app)]
        command += [] if self.superlink is None else [self.superlink]
        try:
            done = subprocess.run(
                [*command, "--format", "json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
                env={**os.environ, **QUIET},
                check=False,
            )
            said = json.loads(done.stdout[done.stdout.find("{") :])
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise SiteError(f"flwr run failed: {error}") from error
        if not isinstance(said, dict) or not said.get("success"):
            why = " ".join(str(said.get("error-message", done.stderr)).split())
            raise SiteError(shorten(f"flwr run failed: {why}", 600))


def client_command(
    superlink: str, site_socket: Path, root_certificates: str | None, private_key: str | None
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables of a site's SuperNode.

    Args:
        superlink: Address of the SuperLink, as ``host:port``.
        site_socket: Socket of the process of the site.
        root_certificates: File to verify the SuperLink's certificate; without it, the connection is
            not encrypted.
        private_key: File that authenticates the site to the SuperLink.

    Raises:
        ValueError: There is no such file, or the address has no port.
    """
    if not superlink.rpartition(":")[2].isdecimal():
        raise ValueError(f"superlink: expected host:port, got {superlink}")
    files = {"root_certificates": root_certificates, "private_key": private_key}
    for name, file in files.items():
        if file is not None and not Path(file).is_file():
            raise ValueError(f"{name}: there is no file {file}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["flower-supernode", "--superlink", superlink, "--port", str(port)]
    command += ["--node-config", f"socket={json.dumps(str(site_socket))}"]
    command += (
        ["--insecure"] if root_certificates is None else ["--root-certificates", root_certificates]
    )
    command += [] if private_key is None else ["--auth-supernode-private-key", private_key]
    return command, QUIET
