"""Plug-ins: methods, data, networks and metrics of other installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

# The groups of entry points under which packages register plug-ins.
GROUPS = ("pfl.methods", "pfl.data", "pfl.nets", "pfl.metrics")


def installed(*groups: str) -> list[EntryPoint]:
    """Return the installed plug-ins of some groups; without groups, of all."""
    return [point for group in groups or GROUPS for point in entry_points(group=group)]
