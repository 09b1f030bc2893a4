"""Writing files atomically, and never through a link.

A run folder may come from somebody else, and a link in it could lead anywhere. So links are never
followed for writing or removing. For changes in place, hard links count as links.
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

# Windows has no such flag; there the preceding check must suffice.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)


def no_link(path: Path) -> Path:
    """Return a path that is safe to write: a file, a folder, or not there yet.

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
    """Add a file's name to system errors that lack it, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def written(path: Path, synced: bool = False) -> Iterator[BinaryIO]:
    """Open a file to replace it: it changes when the block ends, and only if that succeeds.

    Args:
        path: The file.
        synced: Whether the new file is guaranteed to be on the disk when this returns, with all of
            its content, even if the machine fails afterwards.

    Raises:
        OSError: The file cannot be written, or is a link; the error names it.
    """
    if no_link(path).is_dir():
        raise OSError(f"{path} is a folder: name a file")
    scratch = _scratch(path)
    try:
        with naming(path):
            # Left by a killed process with the same number.
            scratch.unlink(missing_ok=True)
            # "x" creates a new file and follows no link.
            with scratch.open("xb") as file:
                yield file
                if synced:
                    file.flush()
                    os.fsync(file.fileno())
            scratch.replace(path)
            if synced and hasattr(os, "O_DIRECTORY"):
                # Otherwise the old file could come back.
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

    Spreadsheets evaluate text that starts with ``=``, ``+``, ``-`` or ``@``, so such text, unless
    it is a number, gets an apostrophe in front. :func:`pfl.disk.reading.read_csv` removes it.

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
    """Return a cell that no spreadsheet evaluates as a formula; see :func:`csv_text`."""
    if not isinstance(cell, str) or not FORMULA.match(cell):
        return cell
    with suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


def append(path: Path, text: str) -> None:
    """Append text to a file; leave the file unchanged if that fails.

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
    """Wait until a file's content is on the disk; ignore a missing file.

    Raises:
        OSError: The disk fails.
    """
    if path.is_file():
        with naming(path), path.open("rb") as file:
            os.fsync(file.fileno())


def clear(folder: Path, names: Iterable[str]) -> None:
    """Remove partial files that killed processes left.

    Args:
        folder: The folder; nothing is removed if it is a link.
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
