"""Packages whose names are imported on first use, so that importing the package costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Make ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Name of the package.
        names: Exported names of each module within the package.
    """
    homes = {name: home for home, exported in names.items() for name in exported}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    exported = sorted(homes)
    return exported, get, lambda: exported
