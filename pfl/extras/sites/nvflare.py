"""The engine that reaches sites through NVFlare."""

from __future__ import annotations

import io
import json
import time
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from pfl.disk.reading import read_json
from pfl.extras.sites.relay import SITE_SOCKET, RelayTransport, Trouble
from pfl.extras.sites.relayed import RelayedEngine
from pfl.extras.sites.transport import SiteError
from pfl.training.contexts import Contexts

LOGIN_SECONDS, END_SECONDS = 30.0, 30.0
_JOB = "pfl.extras.sites.nvflare_job"
_COLLAB = "nvflare.collab.runtime"
# Classes that both sites and server must allow in jobs.
CLASSES = (f"{_COLLAB}.", f"{_JOB}.")


class NVFlareEngine(RelayedEngine):
    """An engine whose sites are clients of NVFlare; bit-identical to the sequential engine.

    It submits a job to a running NVFlare server on this machine; the sites are started by ``pfl
    site``.

    Args:
        kit: NVFlare startup kit of the user who submits the job.
        options: As for :class:`~pfl.extras.sites.relayed.RelayedEngine`.

    Raises:
        ImportError: NVFlare is not installed.
        ValueError: A number is out of range, or there is no such kit.
    """

    name = package = "nvflare"

    def __init__(self, kit: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        if kit is None or not Path(kit, "startup", "fed_admin.json").is_file():
            raise ValueError(
                f"kit: expected the startup kit of a user, with startup/fed_admin.json, got "
                f"{kit} (to try sites without NVFlare, use the engine loopback)"
            )
        self.kit = Path(kit)

    def start(self, transport: RelayTransport, contexts: Contexts, count: int) -> Trouble:
        """Submit a job to the server."""
        kit, job = self.kit, write_job(transport.folder, count, self.answer_seconds)
        try:
            api = import_module("nvflare.fuel.flare_api.flare_api")
            # NVFlare prints its progress.
            with redirect_stdout(io.StringIO()):
                session = api.new_secure_session(
                    kit.name, str(kit.resolve()), timeout=LOGIN_SECONDS
                )
                transport.scope.callback(session.close)
                number = session.submit_job(str(job))
        except Exception as error:
            raise SiteError(f"NVFlare's server rejects jobs from {kit}: {error}") from error

        def trouble() -> str | None:
            status = str(session.get_job_status(number))
            if not status.startswith("FINISHED"):
                return None
            return (
                f"NVFlare's server ended the job ({status}): see the log of job {number} on "
                "the server; server and sites must allow the classes of such a job"
            )

        def leave() -> None:
            """Wait for the job to end, or abort it."""
            until = time.monotonic() + END_SECONDS
            while trouble() is None:
                if time.monotonic() > until:
                    session.abort_job(number)
                    break
                time.sleep(1.0)

        transport.scope.callback(leave)
        return trouble


def client_command(kit: Path, site_socket: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables of a site's NVFlare client.

    Args:
        kit: NVFlare startup kit of the site.
        site_socket: Socket of the process of the site.

    Raises:
        ValueError: The kit does not exist or does not allow our jobs.
    """
    script = kit / "startup" / "sub_start.sh"
    if not (kit / "startup" / "fed_client.json").is_file():
        raise ValueError(
            f"kit: {kit} is not the startup kit of a site, with startup/fed_client.json"
        )
    edited, usual = (kit / "local" / name for name in ("resources.json", "resources.json.default"))
    file = edited if edited.is_file() else usual
    allowed = read_json(file).get("class_allow_list", [])
    if missing := [name for name in CLASSES if name not in allowed]:
        raise ValueError(
            f"kit: {file} must list {' and '.join(missing)} in class_allow_list; see docs/sites.md"
        )
    return ["bash", str(script.resolve()), "--once"], {SITE_SOCKET: str(site_socket)}


def write_job(folder: Path, count: int, answer_seconds: float) -> Path:
    """Write the definition of a job, which refers to installed classes and contains no code.

    Args:
        folder: Folder of the run's :class:`~pfl.extras.sites.relay.RelayTransport`.
        count: Number of sites.
        answer_seconds: Longest time for a site's answer.
    """

    def part(path: str, **arguments: Any) -> dict[str, Any]:
        return {"path": path, "args": arguments}

    calls = {"max_inbound_call_threads": count + 1, "max_outbound_call_threads": count + 1}
    controller = part(
        f"{_COLLAB}.controller.CollabController",
        server_obj_id="_server",
        sync_task_timeout=600,
        **calls,
    )
    executor = part(f"{_COLLAB}.executor.CollabExecutor", client_obj_id="_client", **calls)
    halves = {
        "server": {
            "workflows": [{"id": "controller", **controller}],
            "components": [
                {
                    "id": "_server",
                    **part(f"{_JOB}.ServerHalf", folder=str(folder), seconds=answer_seconds),
                }
            ],
        },
        "client": {
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "_client", **part(f"{_JOB}.SiteHalf")}],
        },
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
    for name, half in halves.items():
        text = json.dumps({"format_version": 2, **half})
        (config / f"config_fed_{name}.json").write_text(text)
    return job
