"""Processes of a test, as somebody would start them in terminals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/sites.md").read_text(encoding="utf-8")
QUICK = ["--config", str(ROOT / "configs/quickstart.yaml")]


def marks(package):
    """Return the marks of tests that need a package, and of those that need its absence."""
    there = find_spec(package) is not None
    return (
        pytest.mark.skipif(not there, reason=f"{package} is not installed"),
        pytest.mark.skipif(there, reason=f"{package} is installed"),
    )


def blocks(language):
    """Return the page's blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Terminals:
    """Starts programs in a folder, each with its output in a file, and ends them all."""

    def __init__(self, folder, **variables):
        programs = Path(sys.executable).parent
        self.folder, self.running = folder, {}
        self.env = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "HOME": str(folder),
            **variables,
        }

    def start(self, name, *words, more=()):
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*words, *more],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.running[name]

    def pfl(self, name, *words):
        return self.start(name, sys.executable, "-m", "pfl", *words)

    def said(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name, seconds=300.0):
        """Wait for a program's end, and return its exit code."""
        try:
            return self.running[name].wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} did not end: {self.said(name)[-2000:]}")

    def wait_for(self, name, text, seconds=200.0):
        """Wait until a program has said something."""
        until = time.monotonic() + seconds
        while text not in self.said(name):
            if time.monotonic() > until or self.running[name].poll() is not None:
                pytest.fail(f"{name} never said {text!r}: {self.said(name)[-2000:]}")
            time.sleep(0.1)

    def kill(self, name):
        """Kill one program, and nothing that it has started."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def end(self):
        for process in self.running.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def fingerprint(text):
    return re.findall(r"fingerprint (\w+)", text)[-1]


def sequential(terminals, *words):
    """Return the fingerprint of the sequential engine."""
    quiet = ["--loop.engine=sequential", "--loop.default_root_dir=null", "--loop.progress=false"]
    terminals.pfl("sequential", "fit", *QUICK, *quiet, *words)
    assert terminals.wait("sequential") == 0, terminals.said("sequential")
    return fingerprint(terminals.said("sequential"))


def owner(client, **changed):
    """Return the page's file of an owner, with changes, as text."""
    content = yaml.safe_load(blocks("yaml")[0])
    return yaml.safe_dump({**content, "client": client, "folder": f"site_{client}", **changed})
