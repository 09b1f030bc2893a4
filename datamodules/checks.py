"""The one way in which this package refuses a value."""

from __future__ import annotations


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError`` with a message unless a condition holds.

    Raises:
        ValueError: It does not.
    """
    if not condition:
        raise ValueError(message)
