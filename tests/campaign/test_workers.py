"""Ray workers that are killed at random moments: the run ends with the sequential numbers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lightning_modules.fedper import FedPer
from pfl.engines.ray import RayEngine
from pfl.engines.sequential import SequentialEngine
from pfl.federation.run import Callback
from pfl.loop import FederatedLoop
from tests.helpers.toy import blobs, mlp

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.campaign

SIZES = (4, 9, 2, 17, 6)


class Kills(Callback):
    """Kills a worker after some result of some round."""

    def __init__(self, draw):
        self.draw = draw
        self.left = draw.randrange(3 * len(SIZES) - 1)
        self.killed = 0

    def on_result(self, run, result):
        self.left -= 1
        # Ray has other processes of such names, as ray::DashboardAgent, with which a node dies.
        workers = [pid for pid in _children() if _name(pid).startswith("ray::Worker")]
        if self.left < 0 and not self.killed and workers:
            os.kill(self.draw.choice(workers), signal.SIGKILL)
            self.killed += 1


def _name(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _children(parent=None):
    """Return the numbers of all processes that came of this one."""
    file = Path(f"/proc/{parent or os.getpid()}/task/{parent or os.getpid()}/children")
    try:
        own = [int(word) for word in file.read_text().split()]
    except OSError:
        own = []
    return own + [number for child in own for number in _children(child)]


def fit(engine, callbacks=()):
    loop = FederatedLoop(3, engine=engine, callbacks=[*callbacks], progress=False)
    return loop.fit(FedPer(mlp()), blobs(SIZES))


def test_a_killed_worker_changes_no_number(case, draw):
    kills = Kills(draw)
    found = fit(RayEngine(workers=2), [kills])
    assert kills.killed == 1
    assert found.fingerprint == fit(SequentialEngine()).fingerprint
