"""Search for image files and folders, and digests of their state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})
# Formats of images that cannot be read, or only in part.
UNREAD = frozenset(
    {".gif", ".heic", ".heif", ".avif", ".jfif", ".jp2", ".tga", ".dcm", ".svg", ".raw", ".ico"}
)


def image_files(folder: Path, others: list[str] | None = None) -> list[str]:
    """List the paths of all image files in a folder and below it, sorted.

    The paths are strings, because a million ``Path`` objects take many seconds. Other files, except
    hidden ones, are added to ``others``.

    Raises:
        ValueError: The folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise ValueError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    files = sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder, onerror=refuse, followlinks=True)
        for name in names
        if not name.startswith(".")
    )
    images = [os.path.splitext(file)[1].lower() in SUFFIXES for file in files]
    if others is not None:
        others += [file for file, image in zip(files, images, strict=True) if not image]
    return [file for file, image in zip(files, images, strict=True) if image]


def subfolders(folder: Path, layout: str) -> list[Path]:
    """List the folders in a folder, sorted by name.

    Raises:
        FileNotFoundError: The folder does not exist or contains no folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; {layout}")
    # Folders that macOS adds to archives are not classes.
    hidden = (".", "__MACOSX")
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(hidden))
    if not folders:
        raise FileNotFoundError(f"the folder {folder} contains no folders; {layout}")
    return folders


def files_digest(root: Path, files: Iterable[str], *, stamps: bool = False) -> str:
    """Hash the names (below ``root``) and sizes of files; copies of a folder have equal hashes.

    ``stamps`` includes modification times, so that a replacement of equal size is noticed.
    """
    digest = hashlib.sha256()
    for file in files:
        status = os.stat(file)
        stamp = status.st_mtime_ns if stamps else ""
        name = os.path.relpath(file, root).replace(os.sep, "/")
        digest.update(f"/{name}\0{status.st_size}\0{stamp}\n".encode())
    return digest.hexdigest()[:32]
