"""The engine whose messages NVFlare carries, in its simulator or to real sites."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypeAlias

from pfl.core.checks import at_least_one, positive
from pfl.core.held_out import members
from pfl.disk.reading import read_json
from pfl.engines.remote.engine import RemoteEngine
from pfl.engines.remote.leash import end, last_words, leashed
from pfl.engines.remote.loopback import made
from pfl.engines.remote.relay import DOOR, Door, Header, Switchboard
from pfl.engines.remote.transport import SiteError, Transport
from pfl.training.context import Context

# NVFlare is optional, so its types cannot be named here.
Session: TypeAlias = Any
START_SECONDS, LOGIN_SECONDS, END_SECONDS = 300.0, 30.0, 30.0
_JOB = "pfl.engines.remote.nvflare_job"
_COLLAB = "nvflare.collab.runtime"
# What a site, and the server, must allow a job to build.
CLASSES = (f"{_COLLAB}.", f"{_JOB}.")


class NVFlareEngine(RemoteEngine):
    """An engine whose sites are clients of NVFlare; its numbers are the sequential engine's bits.

    Without ``kit`` NVFlare's simulator runs on this machine, with a process of its own for each
    site's client; the sites' data stay in this process. With it, a job is submitted to a running
    server of NVFlare on this machine, and the sites are those that ``pfl site`` has started.

    Args:
        kit: Startup kit of the user who submits the job, as NVFlare provisions it; ``None`` runs
            the simulator.
        sites: Number of sites to wait for; ``None`` waits for one for each client of the data.
        answer_seconds: Longest time that a site may take for an answer.
        start_seconds: Longest time until all sites are there.
        folder: Where the simulator's sites keep their states; ``None`` takes a temporary one, which
            ends with the engine.
        on_lost: As for :class:`~pfl.engines.remote.engine.RemoteEngine`.
        workers: As for :class:`~pfl.engines.remote.engine.RemoteEngine`.
        min_sites: As for :class:`~pfl.engines.remote.engine.RemoteEngine`.

    Raises:
        ImportError: NVFlare is not installed.
        ValueError: A number is out of its range, or there is no such kit.
    """

    name = "nvflare"

    def __init__(
        self,
        kit: str | None = None,
        sites: int | None = None,
        answer_seconds: float = 600.0,
        start_seconds: float = START_SECONDS,
        folder: str | None = None,
        on_lost: Literal["stop", "initial"] = "stop",
        workers: int | None = None,
        min_sites: int | None = None,
    ) -> None:
        at_least_one(sites=sites)
        positive(answer_seconds=answer_seconds, start_seconds=start_seconds)
        super().__init__(on_lost, workers, min_sites)
        if find_spec("nvflare") is None:
            raise ImportError(
                "the nvflare engine needs NVFlare: pip install 'pfl-lightning[nvflare]'"
            )
        if kit is not None and not Path(kit, "startup", "fed_admin.json").is_file():
            raise ValueError(
                f"kit: {kit} is no startup kit of a user, which has startup/fed_admin.json"
            )
        self.kit, self.sites, self.folder = kit, sites, folder
        self.answer_seconds, self.start_seconds = answer_seconds, start_seconds

    def connect(self, context: Context) -> Transport:
        """Start the job, and wait for its sites."""
        clients = members(context.data)
        if self.kit is None:
            folder = None if self.folder is None else Path(self.folder)
            return Simulation(context, clients, folder, self.answer_seconds, self.start_seconds)
        count = self.sites or len(clients)
        return Deployment(Path(self.kit), count, self.answer_seconds, self.start_seconds)


class Simulation(Switchboard):
    """NVFlare's simulator: its processes carry the bytes between this process and itself."""

    def __init__(
        self,
        context: Context,
        clients: Sequence[int],
        folder: Path | None,
        answer_seconds: float,
        start_seconds: float,
    ) -> None:
        super().__init__()
        held = {f"site-{client}": client for client in clients}
        sites = self._held = made(context, clients, folder or self.folder / "sites")

        def answer(header: Header, content: bytes) -> bytes:
            client = held[header["site"]]
            if header["verb"] == "who":
                return str(client).encode()
            return sites[client].answer(header["verb"], content)

        self._sites_door = Door(self.folder / "door", answer)
        job = write_job(self.folder, len(clients), answer_seconds)
        workspace = self.folder / "workspace"
        (workspace / "local").mkdir(parents=True)
        allowed = {"format_version": 2, "class_allow_list": [*CLASSES]}
        (workspace / "local" / "resources.json").write_text(json.dumps(allowed))
        command = [
            *(sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(job)),
            *("-w", str(workspace), "-c", ",".join(held), "-t", str(len(clients))),
            *("-m", str(len(clients))),
        ]
        self._log = (self.folder / "log").open("wb")
        self._process = leashed(command, self._log, {DOOR: str(self._sites_door.path)})
        try:
            self.wait(start_seconds, self._trouble)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the simulator."""
        self._over.set()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        end(self._process)
        self._log.close()
        self._sites_door.close()
        for site in self._held.values():
            site.close()
        super().close()

    def _trouble(self) -> str | None:
        if self._process.poll() is None:
            return None
        return shorten(f"NVFlare's simulator ended: {last_words(self.folder / 'log')}", 600)


class Deployment(Switchboard):
    """A job on a running server of NVFlare, which this user submits."""

    def __init__(self, kit: Path, count: int, answer_seconds: float, start_seconds: float) -> None:
        super().__init__()
        self._session: Session = None
        self._job = ""
        try:
            api = import_module("nvflare.fuel.flare_api.flare_api")
            job = write_job(self.folder, count, answer_seconds)
            try:
                # NVFlare prints what it does.
                with redirect_stdout(io.StringIO()):
                    self._session = api.new_secure_session(
                        kit.name, str(kit.resolve()), timeout=LOGIN_SECONDS
                    )
                self._job = self._session.submit_job(str(job))
            except Exception as error:
                raise SiteError(f"NVFlare's server takes no job of {kit}: {error}") from error
            self.wait(start_seconds, self._trouble)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the job end, or abort it if it does not."""
        super().close()
        if self._session is None:
            return
        try:
            until = time.monotonic() + END_SECONDS
            while self._job and self._trouble() is None:
                if time.monotonic() > until:
                    self._session.abort_job(self._job)
                    break
                time.sleep(1.0)
        finally:
            self._session.close()
            self._session = None

    def _trouble(self) -> str | None:
        status = str(self._session.get_job_status(self._job))
        if not status.startswith("FINISHED"):
            return None
        return (
            f"NVFlare's server ended the job ({status}): the log of job {self._job} on its server "
            "says why; both the server and the sites must allow the classes of such a job"
        )


def client_command(kit: Path, door: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts NVFlare's client of a site, and what its environment needs.

    Args:
        kit: The site's startup kit, as NVFlare provisions it.
        door: The door of the process that holds the site.

    Raises:
        ValueError: There is no such kit, or it does not allow our jobs.
    """
    script = kit / "startup" / "sub_start.sh"
    if not (kit / "startup" / "fed_client.json").is_file():
        raise ValueError(
            f"kit: {kit} is no startup kit of a site, which has startup/fed_client.json"
        )
    own, usual = (kit / "local" / name for name in ("resources.json", "resources.json.default"))
    file = own if own.is_file() else usual
    allowed = read_json(file).get("class_allow_list", [])
    if missing := [name for name in CLASSES if name not in allowed]:
        raise ValueError(
            f"kit: {file} must list {' and '.join(missing)} in class_allow_list; see docs/sites.md"
        )
    return ["bash", str(script.resolve()), "--once"], {DOOR: str(door)}


def write_job(folder: Path, count: int, answer_seconds: float) -> Path:
    """Write the definition of a job, which names installed classes and brings no code.

    Args:
        folder: That of the run's :class:`~pfl.engines.remote.relay.Switchboard`.
        count: Number of sites that it needs.
        answer_seconds: Longest time that a site may take for an answer.
    """
    threads = {"max_inbound_call_threads": count + 1, "max_outbound_call_threads": count + 1}
    server = {
        "format_version": 2,
        "workflows": [
            {
                "id": "controller",
                "path": f"{_COLLAB}.controller.CollabController",
                "args": {"server_obj_id": "_server", "sync_task_timeout": 600, **threads},
            }
        ],
        "components": [
            {
                "id": "_server",
                "path": f"{_JOB}.ServerHalf",
                "args": {"folder": str(folder), "seconds": answer_seconds},
            }
        ],
    }
    client = {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {
                    "path": f"{_COLLAB}.executor.CollabExecutor",
                    "args": {"client_obj_id": "_client", **threads},
                },
            }
        ],
        "components": [{"id": "_client", "path": f"{_JOB}.SiteHalf", "args": {}}],
    }
    meta = {
        "name": "pfl",
        "resource_spec": {},
        "min_clients": count,
        "deploy_map": {"app": ["@ALL"]},
    }
    job = folder / "pfl"
    config = job / "app" / "config"
    config.mkdir(parents=True)
    (job / "meta.json").write_text(json.dumps(meta))
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(client))
    return job
