"""Checks of data that do not fit together; :mod:`pfl.core.checks` checks single numbers."""

from __future__ import annotations

# Bytes that a data set may take while it is read into memory.
MEMORY_LIMIT = 8 * 2**30


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError`` with a message unless a condition holds.

    Raises:
        ValueError: The condition does not hold.
    """
    if not condition:
        raise ValueError(message)
