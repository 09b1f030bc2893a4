"""Packages whose names are imported on first use, so that importing the package costs nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy(
    package: str, file: str
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Make ``__all__``, ``__getattr__`` and ``__dir__`` for a package.

    The exported names are those that the package imports only for type checkers, under
    ``if TYPE_CHECKING:``, so each is listed once.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    homes = {
        alias.name: f"{statement.module}"
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    exported = sorted(homes)
    return exported, get, lambda: exported
