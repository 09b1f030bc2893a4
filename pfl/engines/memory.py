"""The free memory of a device, and the memory of a machine, within a container's limits."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import torch

from pfl.core import devices

# The groups of processes of a container.
CGROUP = Path("/sys/fs/cgroup")
# Files with the limit of a container and what it uses (cgroups of versions 2 and 1).
_GROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free(device: torch.device) -> int:
    """Return the free bytes of a device: its own, or the host's within a container's limit."""
    left = devices.free(device)
    return left if left is not None else min(_machine(), *(_group(*files) for files in _GROUPS))


def total() -> int:
    """Return the bytes of the machine's memory, or of its container's."""
    limits = (_number(limit) for limit, _ in _GROUPS)
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits)


def give_back() -> None:
    """Give freed memory back to the system, which glibc keeps in pieces for each thread."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if (trim := getattr(libc, "malloc_trim", None)) is not None:
        trim(0)


def _machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":") for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        # Where free memory is not reported, assume half of the total.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group(limit: str, used: str) -> int:
    """Return the free bytes of a container; without a limit, a very large number."""
    return max(0, _number(limit) - _number(used, 0))


def _number(file: str, otherwise: int = 2**62) -> int:
    try:
        return int((CGROUP / file).read_text())
    except (OSError, ValueError):
        return otherwise
