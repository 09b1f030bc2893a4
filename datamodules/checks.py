"""Refusals of arguments that cannot be: one message each, with what was given."""

from __future__ import annotations

from math import isfinite

# Bytes that a data set may take while it is read into memory.
MEMORY_LIMIT = 8 * 2**30


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError`` with a message unless a condition holds.

    Raises:
        ValueError: It does not.
    """
    if not condition:
        raise ValueError(message)


def finite(**arguments: float) -> None:
    """Refuse infinities and what is not a number.

    Raises:
        ValueError: It names the argument.

    Example:
        >>> finite(alpha=0.1)
    """
    for name, value in arguments.items():
        require(isfinite(value), f"{name} must be a finite number, got {value}")
