"""Memory of this process, as reported by the system (Linux)."""

from __future__ import annotations

from pathlib import Path


def megabytes(*names: str) -> list[float]:
    """Return entries of ``/proc/self/status`` in megabytes.

    Args:
        names: Such as ``VmRSS`` (now), ``RssAnon``, ``RssFile`` (which the system can reclaim), or
            ``VmHWM`` (the peak since the program began or the last reset).
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return [int(values[name].split()[0]) / 1e3 for name in names]


def reset_peak() -> None:
    """Restart the measurement of the peak."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
