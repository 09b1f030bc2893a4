"""Places of the source that were not read: lines, files, folders behind links, frames."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from datamodules.doubts.names import COPY
from datamodules.record import Record

# Formats of images that cannot be read, or only in part.
UNREAD = frozenset(
    {".gif", ".heic", ".heif", ".avif", ".jfif", ".jp2", ".tga", ".dcm", ".svg", ".raw", ".ico"}
)
ARCHIVES = frozenset({".zip", ".tar", ".gz", ".tgz", ".rar", ".7z", ".bz2", ".xz"})
_MASK = re.compile(r"(?i)[_-](mask|seg|segmentation|label|gt|annotation)$")
_PREVIEW = re.compile(r"(?i)[_-](thumb|thumbnail|preview|small)$")
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
    kinds: dict[str, list[str]] = defaultdict(list)
    for place, _ in record.notes.left_out:
        kinds[os.path.splitext(place)[1].lower()].append(place)
    for kind, (first, *more) in kinds.items():
        count = 1 + len(more)
        if kind in UNREAD:
            yield (
                f"{count} images {kind} cannot be read (first {first}): save them in another format"
            )
        elif kind in ARCHIVES:
            yield f"{count} archives {kind} are not read (first {first}): unpack them"
    yield from record.notes.unread
    for folder in record.notes.nested:
        yield (
            f"{folder} has images in several folders, all of the class "
            f"{os.path.basename(folder)!r}: give the folder of the classes, or move them"
        )


def of_file_names(record: Record) -> Iterator[str]:
    """Yield files that are no samples by their names: masks, previews and copies of others."""
    stems = {os.path.splitext(file)[0] for file in record.files}
    for what, found in (("masks", _MASK), ("previews", _PREVIEW), ("copies", COPY)):
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
    classes = record.division.named("class") if record.files else []
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


def of_shortcuts(record: Record) -> Iterator[str]:
    """Yield classes that the format or the size of their files tells, whatever they show."""
    found, seen = record.division, record.pictures
    if found.labels is None or len(record.files) != len(found.labels):
        return
    names = found.named("class")
    kinds = np.array([os.path.splitext(file)[1].lower() for file in record.files])
    every, codes = np.unique(kinds, return_inverse=True)
    parts = [np.flatnonzero(found.labels == one) for one in range(len(names))]
    for name, own in zip(names, parts, strict=True):
        others = np.setdiff1d(np.arange(len(codes)), own)
        if min(len(own), len(others)) < 5:
            continue
        kind = codes[own[0]]
        if (codes[own] == kind).all() and (codes[others] != kind).all():
            yield (
                f"all images of the class {name!r} are {every[kind]}, and no others are: save all "
                "in one format, or a network may learn its traces"
            )
            return
        for what, sizes, why in (
            ("have {} pixels", seen.side, "their sharpness may tell the class"),
            ("lose {} % when cut to squares", 100 * seen.cut, "their form may tell the class"),
        ):
            if len(sizes) == len(codes) and (
                sizes[own].max() < sizes[others].min() or sizes[own].min() > sizes[others].max()
            ):
                here, there = (
                    f"from {part.min():.0f} to {part.max():.0f}"
                    for part in (sizes[own], sizes[others])
                )
                yield (
                    f"images of the class {name!r} {what.format(here)}, and all others {there}: "
                    f"{why}; bring all to one size before"
                )
                return


def of_grey_classes(record: Record) -> Iterator[str]:
    """Yield a class of images without colours, where all others have them, or the reverse."""
    found, grey = record.division, record.grey
    if found.labels is None or len(grey) != len(found.labels):
        return
    for label, name in enumerate(found.named("class")):
        own = found.labels == label
        if min(own.sum(), (~own).sum()) < 5:
            continue
        here, there = float(grey[own].mean()), float(grey[~own].mean())
        if {here, there} == {0.0, 1.0}:
            which = (
                "grey, and all others have colours" if here else "in colours, and all others grey"
            )
            yield (
                f"all images of the class {name!r} are {which}: give grayscale: true, or a network "
                "may learn this alone"
            )
            return


def of_marks(record: Record) -> Iterator[str]:
    """Yield a class whose images have a mark that others lack: a border, a stamp, a caption."""
    names = record.division.named("class")
    for label, (count, row, column) in record.marks.items():
        yield (
            f"{count} pixels (first in row {row}, column {column}) are alike in all images of the "
            f"class {names[label]!r}, and in hardly any other: a border or a mark may tell the "
            "class; crop it"
        )


def of_pictures(record: Record) -> Iterator[str]:
    """Yield what of pictures was not read, and pictures that show nothing."""
    seen = record.pictures
    if seen.frames:
        first, frames = next(iter(seen.frames.items()))
        yield (
            f"{len(seen.frames)} images have several frames (first {first}, {frames}), of which "
            "the first is used: save each frame as an image of its own if they are samples"
        )
    for kind in ("CMYK", "LAB", "HSV", "YCbCr"):
        if count := seen.kinds.get(f"{kind} images", 0):
            yield f"{count} images are {kind}, and are converted to RGB: save them as RGB"
    small = 4 * seen.side < np.median(seen.side) if len(seen.side) else np.zeros(0, bool)
    for odd, what, why in (
        (seen.flat, "are of a single colour", "a camera or a copy may have failed"),
        (
            *(seen.ended, "are of a single colour in their lower quarter alone"),
            "they may have been cut off while copied",
        ),
        (small, "are far smaller than the others", "if they are previews, remove them"),
    ):
        rows = np.flatnonzero(odd)
        share = len(rows) / max(1, len(odd))
        first = record.shown(int(rows[0])) if len(rows) else ""
        if odd is seen.flat and 0.1 < share < 1 and odd[-len(rows) :].all():
            yield (
                f"the last {len(rows)} of {len(odd)} images {what} (from {first} on): was their "
                "array filled to its end? Leave them out"
            )
        # If many are, it is their nature.
        elif 0 < share <= 0.2:
            yield f"{len(rows)} of {len(odd)} images {what} (first {first}): {why}"
    cut = np.flatnonzero(seen.cut > 0.6)
    if len(cut):
        yield (
            f"{len(cut)} images lose more than 60 % outside the centred square that image_size "
            f"uses (first {record.shown(int(cut[0]))}): crop them before"
        )
