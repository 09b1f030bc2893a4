"""This process's memory, as the system reports it (Linux)."""

from __future__ import annotations

from pathlib import Path


def megabytes(*names: str) -> list[float]:
    """Entries of ``/proc/self/status``.

    Args:
        names: Such as ``VmRSS`` (now), ``RssAnon``, ``RssFile`` (which the system may take back),
            ``VmHWM`` (the peak since the program began, or was reset).
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return [int(values[name].split()[0]) / 1e3 for name in names]


def reset_peak() -> None:
    """Count the peak from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
