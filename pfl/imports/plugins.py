"""Where classes come from: the project's own packages, and plug-ins of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

# Where the project's own classes live.
PACKAGES = ("lightning_modules.", "datamodules.", "pfl.")
# The groups of entry points under which packages register plug-ins.
GROUPS = ("pfl.methods", "pfl.data", "pfl.nets", "pfl.metrics")


def installed(*groups: str) -> list[EntryPoint]:
    """Return the installed plug-ins of some groups; without groups, of all."""
    return [point for group in groups or GROUPS for point in entry_points(group=group)]
