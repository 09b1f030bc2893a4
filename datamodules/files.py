"""Many image files, decoded on all cores into memory or a cache file."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from datamodules.checks import MEMORY_LIMIT, require
from datamodules.formats import reading
from datamodules.pictures import Seen, Shape, UnreadableError, opened
from datamodules.record import Pictures
from pfl.disk.writing import written

_CHUNK = 64
# Maximum number of further unreadable files listed in an error.
_NAMED = 20
# What is noted of each image beside its cached pixels.
_NOTED = ("digests", "turned", "flat", "ended", "side", "cut")
# What is said of a cache that cannot be read, for :func:`datamodules.formats.reading`.
DAMAGED = ("is a cache that is damaged", ValueError, "remove it to rebuild it")
T = TypeVar("T")


def readable(files: Sequence[str], shape: Shape) -> dict[str, str]:
    """Try to decode files, and return the reasons of failures by file."""
    whole = replace(shape, size=1)

    def read(row: int) -> None:
        opened(files[row], whole.pixels)

    return for_each_file(files, f"Checking {len(files):,} images", read)


def decode(files: Sequence[str], shape: Shape) -> tuple[Tensor, Pictures]:
    """Decode files into (n, C, H, W) uint8 pixels in memory, and say what was seen.

    Raises:
        ValueError: An image cannot be read or differs in size from the first, or the images take
            more than 8 GiB.
    """
    form = shape.of(files[0])
    size = len(files) * math.prod(form)
    if size > MEMORY_LIMIT:
        raise ValueError(
            f"{len(files):,} images of {form} take {size / 2**30:.1f} GiB of memory; give "
            "cache_dir a folder for a copy that is read in parts, or lower image_size or "
            "max_samples"
        )
    images = np.empty((len(files), *form), np.uint8)
    text = f"Decoding {len(files):,} images ({size / 2**20:,.0f} MiB)"
    return torch.from_numpy(images), _fill(images, files, shape, text)


def decode_once(files: Sequence[str], shape: Shape, cache: Path) -> tuple[Tensor, Pictures]:
    """Decode files into a cache file and map its (n, C, H, W) uint8 pixels into memory.

    ``cache`` is the path of the cache file without its suffix; it must identify the state of the
    files. What was seen while decoding is kept beside it.

    Raises:
        ValueError: An image cannot be read or differs in size from the first, or the cache file is
            damaged.
    """
    form = shape.of(files[0])
    path = cache.with_name(f"{cache.name}-{'x'.join(map(str, form))}.npy")
    notes = path.with_suffix(".noted.npz")
    if not path.exists() or not notes.exists():
        _build(path, notes, files, shape, form)
    with reading(path, *DAMAGED):
        # Copy-on-write, because torch warns about read-only arrays; nothing writes to it.
        images = np.load(path, mmap_mode="c", allow_pickle=False)
        wanted = (len(files), *form)
        require(
            images.dtype == np.uint8 and images.shape == wanted,
            f"it contains {images.dtype} {images.shape}, not uint8 {wanted}",
        )
    with reading(notes, *DAMAGED):
        return torch.from_numpy(images), _seen_before(notes, len(files))


def _seen_before(notes: Path, count: int) -> Pictures:
    """Return what was seen while a cache was built."""
    with np.load(notes, allow_pickle=False) as kept:
        found = {name: kept[name] for name in _NOTED}
        require(all(len(one) == count for one in found.values()), "it is of other files")
        words = json.loads(str(kept["words"]))
    return Pictures(Counter(words["kinds"]), frames=words["frames"], **found)


def _build(
    path: Path, notes: Path, files: Sequence[str], shape: Shape, form: tuple[int, int, int]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as file:
        images = np.lib.format.open_memmap(
            file.name, mode="w+", dtype=np.uint8, shape=(len(files), *form)
        )
        text = f"Decoding {len(files):,} images into {path} ({images.nbytes / 2**20:,.0f} MiB)"
        seen = _fill(images, files, shape, text)
        images.flush()
    with written(notes) as file:
        words = json.dumps({"kinds": seen.kinds, "frames": seen.frames})
        arrays = {n: getattr(seen, n) for n in _NOTED}
        np.savez(file, words=np.array(words), **arrays)


def _fill(images: NDArray[np.uint8], files: Sequence[str], shape: Shape, text: str) -> Pictures:
    """Decode files into the rows of an array, and return what was seen.

    Raises:
        ValueError: Some images cannot be read.
    """
    seen = Seen(len(files))

    def fill(row: int) -> None:
        def read(image: Image.Image) -> NDArray[np.uint8]:
            return seen.add(row, files[row], image, shape)

        pixels = opened(files[row], read)
        if pixels.shape != images.shape[1:]:
            (_, height, width), (_, right, wide) = pixels.shape, images.shape[1:]
            raise ValueError(
                f"{files[row]} is {width}x{height} pixels, others are {wide}x{right}; "
                "give an image_size to crop and resize all of them"
            )
        images[row] = pixels

    if reasons := for_each_file(files, text, fill):
        (first, why), *more = reasons.items()
        others = "".join(f"; {file} ({reason})" for file, reason in more[:_NAMED])
        rest = f"; and {len(more) - _NAMED} more" if len(more) > _NAMED else ""
        raise ValueError(
            f"cannot read the image {first} ({why}){others}{rest}; replace or remove "
            f"{'them' if more else 'it'}, or set on_unreadable: skip"
        )
    return seen.pictures(images)


def for_each_file(files: Sequence[str], text: str, work: Callable[[int], object]) -> dict[str, str]:
    """Call a function for each file on all cores; return the reasons of failures by file.

    Pillow releases the GIL.
    """
    reasons: dict[str, str] = {}

    def part(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(files))):
            try:
                work(row)
            except UnreadableError as error:
                reasons[files[row]] = error.why

    starts = range(0, len(files), _CHUNK)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for _ in progress(pool.map(part, starts), text, len(starts)):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return dict(sorted(reasons.items()))


def progress(steps: Iterable[T], text: str, total: int) -> Iterable[T]:
    """Yield the steps, with a progress bar on standard error."""
    console = Console(stderr=True)
    # In a notebook, rich would need another package to draw bars.
    silent = not console.is_terminal
    return track(steps, text, total, console=console, transient=True, disable=silent)
