"""Places of the source that were not read: lines, files, folders behind links, frames."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from datamodules.record import Record

# Formats of images that cannot be read, or only in part.
UNREAD = frozenset(
    {".gif", ".heic", ".heif", ".avif", ".jfif", ".jp2", ".tga", ".dcm", ".svg", ".raw", ".ico"}
)
ARCHIVES = frozenset({".zip", ".tar", ".gz", ".tgz", ".rar", ".7z", ".bz2", ".xz"})
_MASK = re.compile(r"(?i)[_-](mask|seg|segmentation|label|gt|annotation)$")
_PREVIEW = re.compile(r"(?i)[_-](thumb|thumbnail|preview|small)$")
_COPY = re.compile(r"(?i)( \(\d+\)|[ _-]+(copy|kopie|copie|copia|kopia)( ?\(?\d+\)?)?)$")
# Folders beside those of classes that hold what nobody has put anywhere.
_NO_CLASS = re.compile(
    r"(new|untitled|neuer|nouveau|nueva) ?(folder|ordner|dossier|carpeta)?( \(?\d+\)?)?|_?(backup"
    r"|bak|old|tmp|temp|trash|rejects?|rejected|unsorted|unlabell?ed|to ?do|misc|duplicates?)"
)
_SPLIT = re.compile(
    r"(train|test|val|valid|validation|dev|eval)(ing)?[-_ ]?(\d+|set|data|images|split)?"
)
# The most rows that a spreadsheet holds.
_SHEETS = (65_536, 1_048_576)


def of_lines(record: Record) -> Iterator[str]:
    """Yield cells that swallow rows, and lines that were not read for another reason."""
    lines = record.lines
    if lines is None:
        return
    for first, last, rows in lines.swallowed:
        yield (
            f"{record.source}, line {first}: a cell begins with a quote that is closed in line "
            f"{last} only, and {rows} lines within it look like rows of their own, which are not "
            "read: remove the quote or close it"
        )
    if lines.read in _SHEETS:
        yield (
            f"{record.source} has {lines.read:,} lines, the most that a spreadsheet holds: the "
            "rest may be lost, so export the data without one"
        )


def of_files(record: Record) -> Iterator[str]:
    """Yield files and folders that were left out though they may hold samples, and links."""
    kinds = Counter(os.path.splitext(place)[1].lower() for place, _ in record.left_out)
    for kind, count in kinds.items():
        first = next(p for p, _ in record.left_out if os.path.splitext(p)[1].lower() == kind)
        if kind in UNREAD:
            yield (
                f"{count} images {kind} cannot be read (first {first}): save them in another format"
            )
        elif kind in ARCHIVES:
            yield f"{count} archives {kind} are not read (first {first}): unpack them"
    for link, why in record.links:
        yield f"{link} {why}"
    yield from record.unread
    for folder in record.nested:
        yield (
            f"{folder} has images in several folders, all of the class "
            f"{os.path.basename(folder)!r}: give the folder of the classes, or move them"
        )


def of_file_names(record: Record) -> Iterator[str]:
    """Yield files that are no samples by their names: masks, previews and copies of others."""
    stems = {os.path.splitext(file)[0] for file in record.files}
    for what, found in (("masks", _MASK), ("previews", _PREVIEW), ("copies", _COPY)):
        names = [stem for stem in stems if found.sub("", stem) in stems and found.search(stem)]
        if names:
            yield (
                f"{len(names)} files look like {what} of others beside them (first {min(names)}), "
                "and count as samples: move them to another folder"
            )
    if twice := len(record.files) - len(stems):
        counts = Counter(os.path.splitext(file)[0] for file in record.files)
        stem = next(stem for stem, count in counts.items() if count > 1)
        first = [file for file in record.files if os.path.splitext(file)[0] == stem]
        yield (
            f"{twice} files have the name of another beside them in another format (first "
            f"{' and '.join(first)}), and both count as samples: keep one of each"
        )


def of_folder_names(record: Record) -> Iterator[str]:
    """Yield classes that are none by the names of their folders."""
    if not record.files or record.division is None:
        return
    classes = record.division.names.get("class", {})
    splits = [name for name in classes if _SPLIT.fullmatch(name.casefold())]
    if splits:
        yield (
            f"classes are called {', '.join(splits[:3])}, as splits are: call the folders of a "
            "split train and test"
        )
    others = [name for name in classes if _NO_CLASS.fullmatch(name.casefold())]
    if 0 < len(others) < len(classes):
        yield (
            f"the class {others[0]!r} has the name of a folder for what is no class: move it to "
            "another place"
        )


def of_pictures(record: Record) -> Iterator[str]:
    """Yield what of pictures was not read, and pictures that show nothing."""
    seen = record.pictures
    if seen is None:
        return
    if seen.frames:
        first, frames = next(iter(seen.frames.items()))
        yield (
            f"{len(seen.frames)} images have several frames (first {first}, {frames}), of which "
            "the first is used: save each frame as an image of its own if they are samples"
        )
    for kind in ("CMYK", "LAB", "HSV", "YCbCr"):
        if count := seen.kinds.get(f"{kind} images", 0):
            yield f"{count} images are {kind}, and are converted to RGB: save them as RGB"
    total = len(seen.flat)
    flat = np.flatnonzero(seen.flat)
    if 0 < len(flat) <= 0.2 * total:
        yield (
            f"{len(flat)} of {total} images are of a single colour (first "
            f"{record.shown(int(flat[0]))}): a camera or a copy may have failed"
        )
    cut = np.flatnonzero(seen.ended)
    if 0 < len(cut) <= 0.2 * total:
        yield (
            f"{len(cut)} of {total} images are of a single colour in their lower quarter alone "
            f"(first {record.shown(int(cut[0]))}): they may have been cut off while copied"
        )
    small = np.flatnonzero(4 * seen.side < np.median(seen.side)) if len(seen.side) else flat[:0]
    if 0 < len(small) <= 0.2 * total:
        yield (
            f"{len(small)} of {total} images are far smaller than the others (first "
            f"{record.shown(int(small[0]))}, {seen.side[small[0]]:.0f} pixels): previews?"
        )
    cut = np.flatnonzero(seen.cut > 0.6)
    if len(cut):
        yield (
            f"{len(cut)} images lose more than 60 % outside the centred square that image_size "
            f"uses (first {record.shown(int(cut[0]))}): crop them before"
        )
