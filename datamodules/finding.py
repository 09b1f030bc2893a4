"""Search for image files and folders, and digests of their state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from datamodules import formats
from datamodules.record import Notes

# Hidden files, and the folders that systems and their programs add, hold no samples.
HIDDEN = (
    *(".", "__MACOSX", "__pycache__", "@eaDir", "$RECYCLE.BIN", "lost+found", "#recycle"),
    "System Volume Information",
)
# So many files of other names are looked into.
_LOOKED = 200
_OUT = "{} is a link out of the folder, to {}, whose images are read: copy them, or remove it"
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})


def image_files(folder: Path, notes: Notes | None = None) -> list[str]:
    """List the paths of all image files in a folder and below it, sorted.

    The paths are strings, because a million ``Path`` objects take many seconds. Links are followed,
    but not back into a folder that they are in. Hidden files and folders are left out. Links and
    other files are noted.

    Raises:
        ValueError: The folder cannot be read.
    """
    told, linked = Notes() if notes is None else notes, list[str]()
    files = sorted(_walk(str(folder), (os.path.realpath(folder),), told, linked))
    images = [file for file in files if os.path.splitext(file)[1].lower() in SUFFIXES]
    # If most are links, they are meant to be.
    if linked and 2 * len(linked) < len(files):
        told.unread.append(
            f"{min(linked)} and {len(linked) - 1} other files are links out of the folder: copy "
            "the files"
        )
    if notes is not None and len(images) < len(files):
        others = [file for file in files if os.path.splitext(file)[1].lower() not in SUFFIXES]
        notes.left_out += [(file, "not an image in a known format") for file in others]
        note_images(others, "are images, but are not named so: add .png, .jpg, ...", notes)
    return images


def note_images(files: Sequence[str], why: str, notes: Notes) -> None:
    """Note those of some unread files that are images, whatever their names say."""
    kinds = {"PNG", "JPEG", "TIFF", "WebP", "BMP"}
    some = [file for file in files[:_LOOKED] if os.path.isfile(file)]
    if images := [file for file in some if formats.name_of(Path(file)) in kinds]:
        notes.unread.append(f"{len(images)} files (first {images[0]}) {why}")


def _walk(folder: str, chain: tuple[str, ...], notes: Notes, linked: list[str]) -> Iterator[str]:
    """Yield the files in a folder and below; ``chain`` are the real paths of the folders above."""
    try:
        entries = [*os.scandir(folder)]
    except OSError as error:
        raise ValueError(f"cannot read the folder {error.filename}: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith(HIDDEN):
            continue
        link, real = entry.is_symlink(), f"{chain[-1]}/{entry.name}"
        if link:
            real = os.path.realpath(entry.path)
        if link and not os.path.exists(entry.path):
            notes.unread.append(
                f"{entry.path} is a link to nothing, and is not read: copy its file, or remove it"
            )
        elif not entry.is_dir():
            if link and not _within(real, chain[0]):
                linked.append(entry.path)
            yield entry.path
        elif link and any(_within(one, real) for one in chain):
            notes.unread.append(
                f"{entry.path} is a link back to a folder that it is in, and is not followed: "
                "remove it"
            )
        else:
            if link and not _within(real, chain[0]):
                notes.unread.append(_OUT.format(entry.path, real))
            yield from _walk(entry.path, (*chain, real), notes, linked)


def _within(path: str, folder: str) -> bool:
    """Return ``True`` if a real path is a folder or in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def folders_of(folder: Path, layout: str, notes: Notes) -> list[Path]:
    """List the folders in a folder, sorted by name; a few links out of it are noted.

    Raises:
        FileNotFoundError: The folder does not exist or contains no folder.
    """
    inside = sorted(existing_folder(folder, layout).iterdir())
    folders = [one for one in inside if one.is_dir() and not one.name.startswith(HIDDEN)]
    if not folders:
        loose = sum(one.suffix.lower() in SUFFIXES for one in inside)
        how = f", but {loose} images without a class: move each into a folder of its class"
        raise FileNotFoundError(
            f"the folder {folder} contains no folders{how if loose else ''}; {layout}"
        )
    home = os.path.realpath(folder)
    links = [(one, os.path.realpath(one)) for one in folders if one.is_symlink()]
    lines = [_OUT.format(one, real) for one, real in links if not _within(real, home)]
    # If most are links, they are meant to be.
    notes.unread += lines if 2 * len(lines) <= len(folders) else []
    return folders


def existing_folder(folder: Path, layout: str = "") -> Path:
    """Return the path of an existing folder.

    Raises:
        FileNotFoundError: There is none, or a file in its place; the message ends with the layout.
    """
    if not folder.is_dir():
        kind = formats.name_of(folder) if folder.is_file() else ""
        how = f" ({formats.advice(kind, folder)})" if kind else ""
        what = (
            f"{folder} is a file and no folder{how}"
            if folder.is_file()
            else (f"there is no folder {folder}")
        )
        raise FileNotFoundError("; ".join(filter(None, (what, layout))))
    return folder


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
