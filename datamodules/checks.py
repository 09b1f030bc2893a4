"""Checks of data that do not fit together; :mod:`pfl.core.checks` checks single numbers."""

from __future__ import annotations

from pathlib import Path

# Bytes that a data set may take while it is read into memory.
MEMORY_LIMIT = 8 * 2**30


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError`` with a message unless a condition holds.

    Raises:
        ValueError: The condition does not hold.
    """
    if not condition:
        raise ValueError(message)


def existing(path: str | Path, key: str = "", hint: str = "") -> Path:
    """Return the path of a file, with the user's home spelled out.

    The error names the option ``key`` and ends in ``hint``, such as where to find the file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        prefix, suffix = f"{key}: " if key else "", f"; {hint}" if hint else ""
        raise FileNotFoundError(f"{prefix}there is no file {file}{suffix}")
    return file
