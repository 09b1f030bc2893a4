"""Downloads of data sets by other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def tidied(root: str | Path) -> Iterator[None]:
    """Remove the folders that a download made and left empty if it fails.

    Args:
        root: The folder to which files are downloaded.
    """
    top = Path(root).expanduser().absolute()
    before = {folder for folder in (top, *top.parents, *top.rglob("*")) if folder.is_dir()}
    try:
        yield
    except Exception:
        after = {folder for folder in (top, *top.parents, *top.rglob("*")) if folder.is_dir()}
        for folder in sorted(after - before, reverse=True):
            with suppress(OSError):  # it holds files
                folder.rmdir()
        raise
