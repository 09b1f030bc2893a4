"""The engine whose messages Flower carries to real sites."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from pfl.core.checks import at_least_one, positive
from pfl.core.held_out import members
from pfl.engines.remote.engine import RemoteEngine
from pfl.engines.remote.relay import Switchboard
from pfl.engines.remote.transport import SiteError, Transport
from pfl.training.context import Context

# A run started by us must not send usage statistics, nor ask for newer versions.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_COMMAND_SECONDS = 120.0
_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "pfl-app"
version = "1.0.0"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "pfl"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "pfl.engines.remote.flower_app:server"
clientapp = "pfl.engines.remote.flower_app:client"

[tool.flwr.app.config]
folder = {folder}
sites = {sites}
answer-seconds = {seconds}
"""


class FlowerEngine(RemoteEngine):
    """An engine whose sites are SuperNodes of Flower; its numbers are the sequential engine's bits.

    The SuperLink runs on this machine, and the sites are those that ``pfl site`` has started.

    Args:
        superlink: Name of the connection to the SuperLink in Flower's own configuration, which has
            its address and certificates; ``None`` takes Flower's default.
        sites: Number of sites to wait for; ``None`` waits for one for each client of the data.
        answer_seconds: Longest time that a site may take for an answer.
        start_seconds: Longest time until all sites are there.
        on_lost: As for :class:`~pfl.engines.remote.engine.RemoteEngine`.
        workers: As for :class:`~pfl.engines.remote.engine.RemoteEngine`.
        min_sites: As for :class:`~pfl.engines.remote.engine.RemoteEngine`.

    Raises:
        ImportError: Flower is not installed.
        ValueError: A number is out of its range.
    """

    name = "flower"

    def __init__(
        self,
        superlink: str | None = None,
        sites: int | None = None,
        answer_seconds: float = 600.0,
        start_seconds: float = 300.0,
        on_lost: Literal["stop", "initial"] = "stop",
        workers: int | None = None,
        min_sites: int | None = None,
    ) -> None:
        at_least_one(sites=sites)
        positive(answer_seconds=answer_seconds, start_seconds=start_seconds)
        super().__init__(on_lost, workers, min_sites)
        if find_spec("flwr") is None:
            raise ImportError("the flower engine needs Flower: pip install 'pfl-lightning[flower]'")
        self.superlink, self.sites = superlink, sites
        self.answer_seconds, self.start_seconds = answer_seconds, start_seconds

    def connect(self, context: Context) -> Transport:
        """Start the app, and wait for its sites."""
        count = self.sites or len(members(context.data))
        return FlowerRun(self.superlink, count, self.answer_seconds, self.start_seconds)


class FlowerRun(Switchboard):
    """An app on a running SuperLink of Flower."""

    def __init__(
        self, superlink: str | None, count: int, answer_seconds: float, start_seconds: float
    ) -> None:
        super().__init__()
        self._connection = [] if superlink is None else [superlink]
        try:
            app = self.folder / "app"
            app.mkdir()
            text = _APP.format(
                folder=json.dumps(str(self.folder)), sites=count, seconds=float(answer_seconds)
            )
            (app / "pyproject.toml").write_text(text)
            (app / "LICENSE").write_text("Apache-2.0\n")
            self._flwr("run", str(app))
            self.wait(start_seconds, lambda: None)
        except BaseException:
            self.close()
            raise

    def _flwr(self, *words: str) -> dict[str, Any]:
        """Run a command of Flower and return what it says.

        Raises:
            SiteError: It failed.
        """
        command = [str(Path(sys.executable).with_name("flwr")), *words, *self._connection]
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
            raise SiteError(f"flwr {words[0]} failed: {error}") from error
        if not isinstance(said, dict) or not said.get("success"):
            why = " ".join(str(said.get("error-message", done.stderr)).split())
            raise SiteError(shorten(f"flwr {words[0]} failed: {why}", 600))
        return said


def client_command(
    superlink: str, door: Path, root_certificates: str | None, private_key: str | None
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts Flower's SuperNode of a site, and what its environment needs.

    Args:
        superlink: Address of the SuperLink, as ``host:port``.
        door: The door of the process that holds the site.
        root_certificates: File by which the SuperLink's certificate is checked; without one, the
            connection is not encrypted.
        private_key: File by which the SuperLink knows the site.

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
    command += ["--node-config", f"door={json.dumps(str(door))}"]
    command += (
        ["--insecure"] if root_certificates is None else ["--root-certificates", root_certificates]
    )
    command += [] if private_key is None else ["--auth-supernode-private-key", private_key]
    return command, QUIET
