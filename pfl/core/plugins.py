"""Plug-ins: methods, data, networks and metrics that installed packages bring."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

# Entry points by which an installed package makes itself known.
GROUPS = ("pfl.methods", "pfl.data", "pfl.nets", "pfl.metrics")


def installed(*groups: str) -> list[EntryPoint]:
    """Return the plug-ins of some groups, or of all."""
    return [point for group in groups or GROUPS for point in entry_points(group=group)]
