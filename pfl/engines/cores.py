"""The cores that this process can use and shares with other runs, and the processor's model.

All runs of a user on a machine share its cores, such as tables or sweeps in several shells.
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pfl.disk.lock import acquired
from pfl.engines.memory import CGROUP

CPUINFO = Path("/proc/cpuinfo")
# Of the names of runs' files.
_PREFIX = "run-"


class Share:
    """A run's share of the cores of this machine; a scope whose value is their number.

    Args:
        wanted: The number to take, used as given; ``None`` divides the usable cores by the number
            of runs that share them, to at least one.
    """

    def __init__(self, wanted: int | None = None) -> None:
        self._wanted, self._scope = wanted, ExitStack()

    def __enter__(self) -> int:
        """Join the runs that share the cores; return the number of cores."""
        others = _join(self._scope)
        return self._wanted or max(1, usable() // (1 + others))

    def __exit__(self, *_: object) -> None:
        """Leave the cores to the others."""
        self._scope.close()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Leave the cores to others in this scope, while the run is suspended."""
        self._scope.close()
        try:
            yield
        finally:
            _join(self._scope)


def usable() -> int:
    """Return the number of cores in the process's affinity mask, limited by its cgroup's quota."""
    mask = len(_mask()) or os.cpu_count() or 1
    return max(1, min([mask, *(math.ceil(quota) for quota in _quotas())]))


def processor() -> str:
    """Return the model of the processor, if the system reports it."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _mask() -> set[int]:
    # Not available on every platform; without it, all cores count.
    affinity = getattr(os, "sched_getaffinity", None)
    return set() if affinity is None else set(affinity(0))


def _quotas() -> Iterator[float]:
    """Yield the numbers of cores that cgroups (versions 2 and 1) allow."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((CGROUP / name).read_text() for name in names).split()
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):
            # No such file, or no limit ("max 100000").
            continue
        if quota > 0 < period:
            yield quota / period


def _join(scope: ExitStack) -> int:
    """Join the runs that share these cores until a scope ends; return the number of others.

    If files cannot be written, cores are not shared.
    """
    name = f"pfl-cores-{getattr(os, 'getuid', int)()}"
    mask = "-".join(map(str, sorted(_mask())))
    folder = Path(tempfile.gettempdir(), name, mask or "all")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another user could have created it, as a link to any folder.
        if folder.is_symlink() or folder.parent.is_symlink():
            return 0
        others = sum(_is_held(file) for file in folder.glob(f"{_PREFIX}*"))
        descriptor, path = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        os.close(descriptor)
        if (held := acquired(Path(path))) is not None:
            scope.callback(held.release)
            scope.callback(Path(path).unlink, missing_ok=True)
        return others
    except OSError:
        return 0


def _is_held(file: Path) -> bool:
    """Return ``True`` if a run has locked a file; remove a stale file."""
    try:
        lock = acquired(file)
    except OSError:
        return False
    if lock is None:
        return True
    file.unlink(missing_ok=True)
    lock.release()
    return False
