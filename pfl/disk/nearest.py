"""Suggestions in messages about a wrong name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def nearest(name: str, choices: Iterable[str], count: int = 1) -> str:
    """Return the end of a message that names the nearest choices; empty if none is near."""
    # A name among the choices is not misspelt, whatever else is wrong with it.
    known = [choice for choice in choices if choice != name]
    same = [choice for choice in known if choice.lower() == name.lower()]
    close = same[-1:] or get_close_matches(name, known, n=count)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def hint(name: str, choices: Iterable[str], count: int = 1) -> str:
    """Return the end of a message that names the nearest choices, or all of them."""
    known = list(choices)
    return nearest(name, known, count) or f"; choose from {', '.join(known)}"


def nearest_file(path: Path) -> str:
    """Return the end of a message about a missing YAML file: the nearest one in its folder."""
    return nearest(path.name, [file.name for file in path.parent.glob("*.yaml")])
