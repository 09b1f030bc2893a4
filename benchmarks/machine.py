"""The machine on which numbers are measured, and the load of other programs on it."""

from __future__ import annotations

import os
import platform
import time
from datetime import date
from pathlib import Path

import lightning
import torch

from pfl.engines.cores import processor, usable


class Others:
    """Cores that other programs use, counted from its creation (Linux; elsewhere none)."""

    def __init__(self) -> None:
        self._before = self._now()

    def cores(self) -> float:
        """Return how many cores they used on average."""
        (busy, own, clock), (b, o, c) = self._now(), self._before
        return max(0.0, (busy - b - (own - o)) / max(1e-9, clock - c))

    def _now(self) -> tuple[float, float, float]:
        path, own = Path("/proc/stat"), os.times()
        mine = own.user + own.system + own.children_user + own.children_system
        if not path.exists():
            return mine, mine, time.perf_counter()
        user, nice, system, _, _, irq, soft = map(int, path.read_text().split()[1:8])
        ticks = os.sysconf("SC_CLK_TCK")
        return (user + nice + system + irq + soft) / ticks, mine, time.perf_counter()


def machine() -> dict[str, str | int]:
    """Describe the machine and the versions with which the numbers were measured."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": date.today().isoformat(),
        "cores": usable(),
        "load": f"{load:.1f}",
        "processor": processor(),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
    }
