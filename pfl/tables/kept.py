"""Runs that tables have kept: finished ones are read, begun ones are gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pfl.explain import UsageError
from pfl.results.runs import RunError, RunFolder


class BusyError(RuntimeError):
    """Another process is at work on the run."""


def finished(root: str | Path, name: str) -> Path | None:
    """The folder of a name's run, if it came to its end."""
    folders = _folders(root, name)
    return next((f for f in folders if (f / "summary.json").is_file()), None)


def begun(root: str | Path, name: str) -> Path | None:
    """The newest folder that a run can be gone on from."""
    folders = _folders(root, name)
    return next((f for f in folders if (f / "checkpoints" / "last.ckpt").is_file()), None)


def clear(root: str | Path, name: str) -> None:
    """Remove what was left by a process that ended before its first checkpoint."""
    for folder in _folders(root, name):
        kept = (folder / "summary.json", folder / "checkpoints" / "last.ckpt")
        if not any(file.is_file() for file in kept):
            shutil.rmtree(folder)


def rounds_done(folder: Path) -> int:
    """Finished rounds of a begun run, as far as its tables tell."""
    try:
        return RunFolder.read(folder).round
    except RunError:
        return 0


def _folders(root: str | Path, name: str) -> list[Path]:
    """A run is named by its starting time: newest first."""
    return sorted((path for path in Path(root, name).glob("*") if path.is_dir()), reverse=True)


@contextmanager
def locked(root: str | Path, name: str) -> Iterator[None]:
    """Inside, no other process of this machine works on the run; the lock ends with the process.

    Raises:
        BusyError: One does.
        UsageError: The folder cannot be written.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows: there nobody is kept out
        yield
        return
    folder = Path(root, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise UsageError(f"runs of tables are kept below {root}: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError("another process is at work on this run") from error
        yield
