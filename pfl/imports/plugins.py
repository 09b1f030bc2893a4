"""Where classes come from: the project's own packages, and plug-ins of other packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

# Where the project's own classes live.
PACKAGES = ("lightning_modules.", "datamodules.", "pfl.")
# The groups of entry points under which packages register plug-ins.
GROUPS = ("pfl.methods", "pfl.data", "pfl.nets", "pfl.metrics")


def installed(*groups: str) -> list[EntryPoint]:
    """Return the installed plug-ins of some groups; without groups, of all."""
    return [point for group in groups or GROUPS for point in entry_points(group=group)]


def loaded(group: str) -> Iterator[Any]:
    """Yield what the plug-ins of a group name, without extras that were removed."""
    for point in installed(group):
        try:
            yield point.load()
        except ModuleNotFoundError as error:
            if not of_removed(error):
                raise


def of_removed(error: Exception) -> bool:
    """Return ``True`` for the import of an extra that was removed from the folder of a clone."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return (missing or "").startswith("pfl.extras")
