"""Files that are written whole or not at all, and never through a link.

A run folder may have come from somebody else. A link in it could lead anywhere, so that no link is
followed for writing or removing. Where a file is changed in place, a second name of it (a hard
link) counts as one.
"""

from __future__ import annotations

import csv
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from pfl.disk.reading import FORMULA

# Windows has no such flag; there the check before it must do.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)


def no_link(path: Path) -> Path:
    """Return a path to write at: it is a file or a folder, or nothing yet.

    Raises:
        OSError: It is a link, or a device.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return path
    if stat.S_ISLNK(mode):
        raise _linked(path)
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(f"{path} is not a file that can be written: remove it")
    return path


def opened(path: Path, flags: int) -> int:
    """Open a file to change it in place, or a folder; return its descriptor.

    Raises:
        OSError: It cannot be opened, or is a link.
    """
    descriptor = os.open(no_link(path), flags | _NO_LINK, 0o666)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        os.close(descriptor)
        raise _linked(path)
    return descriptor


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of a file to a system's error that lacks it, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def written(path: Path, synced: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write it anew: it changes once the block has ended, and not if that fails.

    Args:
        path: The file.
        synced: Whether the new file is on the disk when this returns, whatever happens to the
            machine then, and takes the place of the old one with all of its content.

    Raises:
        OSError: The file cannot be written, or is a link; the error names it.
    """
    if no_link(path).is_dir():
        raise OSError(f"{path} is a folder: name a file")
    scratch = _scratch(path)
    try:
        with naming(path):
            # Left by a process that was killed and had the same number.
            scratch.unlink(missing_ok=True)
            # "x" makes a new file, so that it follows no link.
            with scratch.open("xb") as file:
                yield file
                if synced:
                    file.flush()
                    os.fsync(file.fileno())
            scratch.replace(path)
            if synced and hasattr(os, "O_DIRECTORY"):
                # Or the old file could come back.
                folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
    finally:
        scratch.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Write a text; see :func:`written`."""
    with written(path) as file:
        file.write(text.encode())


def csv_text(
    rows: Sequence[Mapping[str, Any]], header: Iterable[str] = (), headed: bool = True
) -> str:
    """Return rows as the text of a CSV file; missing cells are empty.

    A spreadsheet calculates what begins with ``=``, ``+``, ``-`` or ``@``, so such a text that is
    no number gets an apostrophe before it. :func:`pfl.disk.reading.read_csv` removes it.

    Args:
        rows: Cells by column.
        header: Columns that come first, whether a row has them or not.
        headed: Whether the first line names the columns.
    """
    stream = io.StringIO()
    columns = dict.fromkeys([*header, *(name for row in rows for name in row)])
    writer = csv.writer(stream, lineterminator="\n")
    if headed:
        writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name, "")) for name in columns] for row in rows)
    return stream.getvalue()


def _harmless(cell: Any) -> Any:  # noqa: ANN401
    """Return a cell that no spreadsheet takes for a formula; see :func:`csv_text`."""
    if not isinstance(cell, str) or not FORMULA.match(cell):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


def append(path: Path, text: str) -> None:
    """Append a text to a file, wholly or not at all.

    Raises:
        OSError: The file cannot be written, or is a link; the error names it.
    """
    with naming(path):
        descriptor = opened(path, os.O_WRONLY | os.O_APPEND)
        try:
            size, remaining = os.fstat(descriptor).st_size, text.encode()
            try:
                while remaining:
                    remaining = remaining[os.write(descriptor, remaining) :]
            except BaseException:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file's content is on the disk; a missing file is none.

    Raises:
        OSError: The disk fails.
    """
    if path.is_file():
        with naming(path), path.open("rb") as file:
            os.fsync(file.fileno())


def clear(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed processes have left of files that they were writing.

    Args:
        folder: The folder; it is none if it is a link.
        names: Names of the files.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    pattern = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.\d+")
    for file in folder.iterdir():
        if pattern.fullmatch(file.name) and file.is_file() and not file.is_symlink():
            file.unlink(missing_ok=True)


def _scratch(path: Path) -> Path:
    """Return the path to which this process writes before it replaces ``path``; see clear."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _linked(path: Path) -> OSError:
    return OSError(f"{path} is a link, and nothing is written through links: remove it")
