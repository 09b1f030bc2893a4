"""Checks of the consistency of data; :mod:`pfl.core.checks` checks single numbers."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

# Maximum number of bytes of a data set that is read into memory.
MEMORY_LIMIT = 8 * 2**30


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError`` with a message unless a condition holds.

    Raises:
        ValueError: The condition does not hold.
    """
    if not condition:
        raise ValueError(message)


def optional(package: str, extra: str, who: str, instead: str = "") -> Any:  # noqa: ANN401
    """Import a package that an extra of the project installs.

    Args:
        package: Its name, or that of a module in it.
        extra: The extra.
        who: Who needs it, to begin the message with.
        instead: What else can be done, to end it with.

    Raises:
        ImportError: It is not installed; the message has the line that installs it.
    """
    name = package.partition(".")[0]
    try:
        import_module(name)
        return import_module(package)
    except ImportError as error:
        how = f"pip install 'pfl-lightning[{extra}]'{instead}"
        raise ImportError(f"{who} needs {name}: {how}") from error


def existing(path: str | Path, key: str = "", hint: str = "") -> Path:
    """Return the path of an existing file, with the home folder expanded.

    The error begins with the option ``key`` and ends with ``hint``, such as a source.

    Raises:
        FileNotFoundError: There is no such file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        prefix, hint = f"{key}: " if key else "", hint or _instead(str(path), file)
        raise FileNotFoundError(f"{prefix}there is no file {file}{f'; {hint}' if hint else ''}")
    return file


def _instead(given: str, file: Path) -> str:
    """Return what may be meant by the path of a file that does not exist."""
    if file.is_dir() and (parts := sorted(one.name for one in file.iterdir())):
        return (
            f"it is a folder of {len(parts)} files, such as {parts[0]}: give one, or join them "
            "first (pandas.concat)"
        )
    if "$" in given or "%" in given:
        return "variables are not filled in here: write the path itself"
    if given[:1] in "'\"" and given[:1]:
        return "the quotes count as part of it: leave them out"
    if "://" in given:
        return f"it is an address: download the file (curl -LO {given}), and give its path"
    if any(sign in file.name for sign in "*?[") and (found := sorted(file.parent.glob(file.name))):
        return f"{len(found)} files are called so, such as {found[0]}: give one, or join them first"
    beside = [one.name for one in file.parent.iterdir()] if file.parent.is_dir() else []
    plain = file.stem.casefold()
    alike = [name for name in beside if Path(name).stem.casefold() == plain]
    alike = sorted(alike) or get_close_matches(file.name, beside, 1)
    return f"there is {file.parent / alike[0]}" if alike else ""
