"""The sources of classes: the project's own packages, and plug-ins of other packages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from importlib.util import find_spec
from typing import Any

# The packages of the project's own classes.
PACKAGES = ("lightning_modules.", "datamodules.", "pfl.")
# The groups of entry points under which packages register plug-ins.
GROUPS = ("pfl.methods", "pfl.data", "pfl.nets", "pfl.metrics")


@cache
def entry_points(group: str) -> EntryPoints:
    """Return the plug-ins of a group; cached, as it reads every installed package's metadata."""
    return metadata.entry_points(group=group)


def installed(*groups: str) -> list[EntryPoint]:
    """Return the installed plug-ins of some groups; without groups, of all of :data:`GROUPS`.

    A part of this project that was removed from the folder of a clone is still registered, and is
    left out.
    """
    points = (point for group in groups or GROUPS for point in entry_points(group=group))
    return [point for point in points if _is_there(point)]


def loaded(group: str) -> Iterator[Any]:
    """Yield the objects that the plug-ins of a group name."""
    return (point.load() for point in installed(group))


def _is_there(point: EntryPoint) -> bool:
    """Return ``False`` for a plug-in of a part of this project that was removed."""
    home = ".".join(point.module.split(".")[:3])
    if not home.startswith(PACKAGES):
        return True
    try:
        spec = find_spec(home)
    except ModuleNotFoundError:  # the package above it was removed
        return False
    # Without an origin it is a folder with leftover compiled files.
    return spec is not None and spec.origin is not None
