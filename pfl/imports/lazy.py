"""Modules whose names are imported on first use, so that importing the module costs nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def lazy(
    module: str, file: str
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Make ``__all__``, ``__getattr__`` and ``__dir__`` for a module.

    The exported names are those that the module imports only for type checkers, under ``if
    TYPE_CHECKING:``, so each is listed once. ``from other import *`` stands for all that the other
    module exports in one of these two ways: so, or by imports of its own; for nothing if it was
    removed.
    """
    homes = dict(_imported(file))

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = getattr(import_module(homes[name]), name)
        # The next use finds it without a search.
        setattr(sys.modules[module], name, found)
        return found

    exported = sorted(homes)
    return exported, get, lambda: exported


def _imported(file: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a module exports, each with the module that it imports the name from."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = [block.body for block in tree.body if isinstance(block, ast.If)]
    for statement in (one for body in (tree.body, *blocks) for one in body):
        if not isinstance(statement, ast.ImportFrom):
            continue
        for alias in statement.names:
            if alias.name == "*":
                other = find_spec(f"{statement.module}")
                if other is not None and other.origin is not None:
                    yield from _imported(other.origin)
            elif alias.asname is not None:
                yield alias.name, f"{statement.module}"
