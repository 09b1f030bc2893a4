"""Checks of the consistency of data; :mod:`pfl.core.checks` checks single numbers."""

from __future__ import annotations

from pathlib import Path

# Maximum number of bytes of a data set that is read into memory.
MEMORY_LIMIT = 8 * 2**30


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError`` with a message unless a condition holds.

    Raises:
        ValueError: The condition does not hold.
    """
    if not condition:
        raise ValueError(message)


def existing(path: str | Path, key: str = "", hint: str = "") -> Path:
    """Return the path of an existing file, with the home folder expanded.

    The error begins with the option ``key`` and ends with ``hint``, such as a source.

    Raises:
        FileNotFoundError: There is no such file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        prefix, suffix = f"{key}: " if key else "", f"; {hint}" if hint else ""
        raise FileNotFoundError(f"{prefix}there is no file {file}{suffix}")
    return file
