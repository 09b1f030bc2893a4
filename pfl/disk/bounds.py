"""Limits of untrusted content, which a program might otherwise traverse without end.

A file can refer to one list many times, and to a list within itself.
"""

from __future__ import annotations

from typing import Any

# Levels of nested lists and mappings, and values of a text; each reference counts.
DEPTH, SIZE = 50, 100_000
_NESTED = (dict, list, tuple)


class BoundsError(ValueError):
    """Content has too many levels or values."""


def check_bounds(content: Any, most: float = SIZE) -> None:  # noqa: ANN401
    """Check the depth and the number of nested values.

    Args:
        content: Nested dictionaries, lists and tuples.
        most: Largest number of values; each reference counts.

    Raises:
        BoundsError: They have more, or are deeper than :data:`DEPTH`.
    """
    pending, left = [(content, 0)], most
    while pending:
        value, depth = pending.pop()
        if isinstance(value, _NESTED):
            left -= len(value)
            if depth == DEPTH:
                raise BoundsError(f"there are more than {DEPTH} levels")
            if left < 0:
                raise BoundsError(f"there are more than {most:,} values, aliases included")
            inner = value.values() if isinstance(value, dict) else value
            # Most lists are long and of numbers alone.
            if any(issubclass(kind, _NESTED) for kind in {*map(type, inner)}):
                pending += [(v, depth + 1) for v in inner if isinstance(v, _NESTED)]
