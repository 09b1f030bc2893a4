"""Search for image files and folders, and digests of their state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datamodules import formats

# Hidden files, and the folders that macOS adds to archives, hold no samples.
HIDDEN = (".", "__MACOSX")
# So many files of other names are looked into.
_LOOKED = 200
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})


@dataclass
class Found:
    """What a search in a folder has found besides image files.

    Attributes:
        others: Other files, except hidden ones.
        links: Links that lead out of the folder or back into it, and what was done.
    """

    others: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)


def image_files(folder: Path, found: Found | None = None) -> list[str]:
    """List the paths of all image files in a folder and below it, sorted.

    The paths are strings, because a million ``Path`` objects take many seconds. Links are followed,
    but not back into a folder that they are in. Hidden files and folders are left out.

    Raises:
        ValueError: The folder cannot be read.
    """
    found = Found() if found is None else found
    linked: list[str] = []
    files = sorted(_walk(str(folder), (os.path.realpath(folder),), found, linked))
    images = [file for file in files if os.path.splitext(file)[1].lower() in SUFFIXES]
    found.others += [file for file in files if os.path.splitext(file)[1].lower() not in SUFFIXES]
    # If most are links, they are meant to be.
    if linked and 2 * len(linked) < len(files):
        first = min(linked)
        found.links.append(
            (
                first,
                f"and {len(linked) - 1} other files are links out of the folder: copy the files",
            )
        )
    return images


def _walk(folder: str, chain: tuple[str, ...], found: Found, linked: list[str]) -> Iterator[str]:
    """Yield the files in a folder and below; ``chain`` are the real paths of the folders above."""
    try:
        entries = [*os.scandir(folder)]
    except OSError as error:
        raise ValueError(f"cannot read the folder {error.filename}: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith(HIDDEN):
            continue
        if entry.is_symlink() and not os.path.exists(entry.path):
            found.links.append(
                (entry.path, "is a link to nothing, and is not read: copy its file, or remove it")
            )
            continue
        if not entry.is_dir():
            if entry.is_symlink() and not _within(os.path.realpath(entry.path), chain[0]):
                linked.append(entry.path)
            yield entry.path
            continue
        real = os.path.realpath(entry.path) if entry.is_symlink() else f"{chain[-1]}/{entry.name}"
        if entry.is_symlink() and any(_within(one, real) for one in chain):
            found.links.append((entry.path, "is a link back to a folder that it is in, and is not "
                                "followed: remove it"))  # fmt: skip
            continue
        if entry.is_symlink() and not _within(real, chain[0]):
            found.links.append((entry.path, f"is a link out of the folder, to {real}, whose images "
                                "are read: copy them, or remove it"))  # fmt: skip
        yield from _walk(entry.path, (*chain, real), found, linked)


def _within(path: str, folder: str) -> bool:
    """Return ``True`` if a real path is a folder or in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def links_out(folders: Sequence[Path]) -> list[tuple[str, str]]:
    """Return those of some folders beside each other that alone are links out of theirs."""
    found = [
        (str(one), f"is a link out of the folder, to {os.path.realpath(one)}, whose images are "
         "read: copy them, or remove it")
        for one in folders
        if one.is_symlink() and not _within(os.path.realpath(one), os.path.realpath(one.parent))
    ]  # fmt: skip
    # If most are links, they are meant to be.
    return found if 2 * len(found) <= len(folders) else []


def images_by_content(files: Sequence[str]) -> list[str]:
    """Return those of some files that are images, whatever their names say."""
    kinds = {"PNG", "JPEG", "TIFF", "WebP", "BMP"}
    some = [file for file in files[:_LOOKED] if os.path.isfile(file)]
    return [file for file in some if formats.name_of(Path(file)) in kinds]


def subfolders(folder: Path, layout: str) -> list[Path]:
    """List the folders in a folder, sorted by name.

    Raises:
        FileNotFoundError: The folder does not exist or contains no folder.
    """
    if folder.is_file():
        kind = formats.name_of(folder)
        how = f" ({formats.advice(kind, folder)})" if kind else ""
        raise FileNotFoundError(f"{folder} is a file and no folder{how}; {layout}")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; {layout}")
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(HIDDEN))
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
