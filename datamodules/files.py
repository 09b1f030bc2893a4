"""Image files: finding, decoding and caching them."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track
from torch import Tensor

from datamodules.checks import MEMORY_LIMIT, require
from pfl.core.checks import at_least_one
from pfl.disk.writing import written

_BROKEN = (OSError, SyntaxError, ValueError, KeyError, TypeError, EOFError)
_CHUNK = 64
# Maximum number of further unreadable files listed in an error.
_NAMED = 20
# EXIF tag of the orientation.
_ORIENTATION = 0x0112
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """Common format of the decoded images.

    Args:
        size: Height and width to which the largest centred square of each image is resized.
            ``None`` keeps the size, which must then be the same for all images.
        grayscale: Use one channel instead of three.
        over_white: Draw transparent images over white instead of their hidden colours, often black.
        exif_orientation: Rotate images by their EXIF orientation.
    """

    size: int | None = None
    grayscale: bool = False
    over_white: bool = True
    exif_orientation: bool = True

    def __post_init__(self) -> None:
        at_least_one(image_size=self.size)

    def of(self, first: str) -> tuple[int, int, int]:
        """Return channels, height and width of the decoded images, given one of them."""
        channels = 1 if self.grayscale else 3
        if self.size is not None:
            return channels, self.size, self.size
        height, width = _opened(first, lambda image: self.upright(image)[0].size[::-1])
        return channels, height, width

    def upright(self, image: Image.Image) -> tuple[Image.Image, bool]:
        """Rotate an image by its EXIF orientation; also return whether it was rotated."""
        try:
            turned = self.exif_orientation and image.getexif().get(_ORIENTATION, 1) in range(2, 9)
        # Pillow raises many kinds of errors for unreadable metadata, which do not affect the image.
        except Exception:
            turned = False
        return (ImageOps.exif_transpose(image), True) if turned else (image, False)


def readable(files: Sequence[str], shape: Shape) -> dict[str, str]:
    """Try to decode files, and return the reasons of failures by file."""
    whole = replace(shape, size=1)
    return _each(files, f"Checking {len(files):,} images", lambda row: _pixels(files[row], whole))


def decode(files: Sequence[str], shape: Shape) -> tuple[Tensor, Counter[str]]:
    """Decode files into (n, C, H, W) uint8 pixels in memory, and count kinds of images.

    Raises:
        ValueError: An image cannot be read or differs in size from the first, or the images take
            more than 8 GiB.
    """
    form = shape.of(files[0])
    size = len(files) * math.prod(form)
    if size > MEMORY_LIMIT:
        raise ValueError(
            f"{len(files):,} images of {form} take {size / 2**30:.1f} GiB of memory; give "
            "cache_dir a folder for a memory-mapped copy, or lower image_size or max_samples"
        )
    images = np.empty((len(files), *form), np.uint8)
    text = f"Decoding {len(files):,} images ({size / 2**20:,.0f} MiB)"
    return torch.from_numpy(images), _fill(images, files, shape, text)


def decode_once(files: Sequence[str], shape: Shape, cache: Path) -> Tensor:
    """Decode files into a cache file and memory-map its (n, C, H, W) uint8 pixels.

    ``cache`` is the path of the cache file without its suffix; it must identify the state of the
    files.

    Raises:
        ValueError: An image cannot be read or differs in size from the first, or the cache file is
            damaged.
    """
    form = shape.of(files[0])
    path = cache.with_name(f"{cache.name}-{'x'.join(map(str, form))}.npy")
    if not path.exists():
        _build(path, files, shape, form)
    with reading_cache(path):
        # Copy-on-write, because torch warns about read-only arrays; nothing writes to it.
        images = np.load(path, mmap_mode="c", allow_pickle=False)
        wanted = (len(files), *form)
        require(
            images.dtype == np.uint8 and images.shape == wanted,
            f"it contains {images.dtype} {images.shape}, not uint8 {wanted}",
        )
        return torch.from_numpy(images)


@contextmanager
def reading_cache(path: Path) -> Iterator[None]:
    """Convert any error in this context to one with the cache file and the remedy.

    Raises:
        ValueError: The cache is damaged.
    """
    try:
        yield
    # For damaged files, numpy raises a dozen kinds of errors, of zipfile, tokenize and its own.
    except Exception as error:
        raise ValueError(
            f"the cache {path} is damaged ({error}); remove it to rebuild it"
        ) from error


def _build(path: Path, files: Sequence[str], shape: Shape, form: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as file:
        images = np.lib.format.open_memmap(
            file.name, mode="w+", dtype=np.uint8, shape=(len(files), *form)
        )
        text = f"Decoding {len(files):,} images into {path} ({images.nbytes / 2**20:,.0f} MiB)"
        _fill(images, files, shape, text)
        images.flush()


def _fill(images: NDArray[np.uint8], files: Sequence[str], shape: Shape, text: str) -> Counter[str]:
    """Decode files into the rows of an array, and count kinds of images.

    Raises:
        ValueError: Some images cannot be read.
    """
    seen: list[str] = []

    def fill(row: int) -> None:
        pixels = _pixels(files[row], shape, seen)
        if pixels.shape != images.shape[1:]:
            (_, height, width), (_, right, wide) = pixels.shape, images.shape[1:]
            raise ValueError(
                f"{files[row]} is {width}x{height} pixels, others are {wide}x{right}; "
                "give an image_size to crop and resize all of them"
            )
        images[row] = pixels

    if reasons := _each(files, text, fill):
        (first, why), *more = reasons.items()
        others = "".join(f"; {file} ({reason})" for file, reason in more[:_NAMED])
        rest = f"; and {len(more) - _NAMED} more" if len(more) > _NAMED else ""
        raise ValueError(
            f"cannot read the image {first} ({why}){others}{rest}; replace or remove "
            f"{'them' if more else 'it'}, or set on_unreadable: skip"
        )
    return Counter(seen)


def _each(files: Sequence[str], text: str, work: Callable[[int], object]) -> dict[str, str]:
    """Call a function for each file on all cores; return the reasons of failures by file.

    Pillow releases the GIL.
    """
    reasons: dict[str, str] = {}

    def part(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(files))):
            try:
                work(row)
            except _UnreadableError as error:
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


def _pixels(file: str, shape: Shape, seen: list[str] | None = None) -> NDArray[np.uint8]:
    """Decode one file into (C, H, W) pixels; add the kinds of image to ``seen``."""

    def read(image: Image.Image) -> NDArray[np.uint8]:
        require(
            image.mode[0] not in "IF",
            f"its pixels are {image.mode} instead of bytes, so that values would be clipped at 255",
        )
        # Pillow would keep only the upper byte, which is 0 in many microscopy images.
        require(
            not re.search(";16[BLN]", str(getattr(image, "tile", ""))),
            "its pixels have 16 bits per channel; rescale its values and save it with 8",
        )
        found = [f"{image.mode} images"]
        if getattr(image, "n_frames", 1) > 1:
            found.append("images of several frames, of which the first is used")
        image, turned = shape.upright(image)
        found += ["images turned by their EXIF orientation"] if turned else []
        if shape.over_white and _is_transparent(image):
            found.append("images with transparency, laid over white")
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("L" if shape.grayscale else "RGB")
        if shape.size is not None:
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = image.crop((left, top, left + side, top + side))
            image = square.resize((shape.size, shape.size), Image.Resampling.BILINEAR)
        if seen is not None:
            seen.extend(found)
        pixels = np.asarray(image, np.uint8)
        return pixels[None] if shape.grayscale else pixels.transpose(2, 0, 1)

    return _opened(file, read)


def _is_transparent(image: Image.Image) -> bool:
    """Return ``True`` if an image has an alpha channel or a transparent colour."""
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


class _UnreadableError(ValueError):
    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"cannot read the image {file} ({why}); replace or remove it")
        self.file = file
        self.why = why


def _opened(file: str, read: Callable[[Image.Image], T]) -> T:
    try:
        if not os.path.isfile(file):
            raise OSError("not a regular file")
        with Image.open(file) as image:
            return read(image)
    # Pillow raises any of these for a broken file, depending on the decoder.
    except (*_BROKEN, Image.DecompressionBombError) as error:
        raise _UnreadableError(file, str(error)) from error
